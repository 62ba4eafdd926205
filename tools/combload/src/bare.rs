//! `server204`: a hyper server that reads bodies and answers 204. The price of HTTP alone, to compare with.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::LoadError;
use crate::args::Server204;
use crate::stats::{Report, Tally};

/// Most connections at once; more wait in the listen queue.
const CONNECTIONS: usize = 4096;

/// Runs `server204`.
///
/// # Errors
/// The port is taken.
pub(crate) async fn run(options: &Server204) -> Result<Report, LoadError> {
    let listen = |source| LoadError::Listen { port: options.port, source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await.map_err(listen)?;
    eprintln!("combload: listening on {}", listener.local_addr().map_err(listen)?);
    let served = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let length = options.seconds.map_or(Duration::from_secs(86_400), Duration::from_secs_f64);
    tokio::select! {
        () = accept(listener, Arc::clone(&served)) => {}
        () = tokio::time::sleep(length) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    let mut tally = Tally::new();
    tally.requests = served.load(Ordering::Relaxed);
    Ok(tally.report(start.elapsed()))
}

async fn accept(listener: TcpListener, served: Arc<AtomicU64>) {
    let limit = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&limit).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely; a pause lets connections end.
                eprintln!("combload: accepting: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Without it answers may wait; a bare server that is slow by accident would flatter everyone else.
        let _ = stream.set_nodelay(true);
        let served = Arc::clone(&served);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&served)));
            // A client that goes away is no event here.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
    }
}

async fn answer(
    mut request: Request<Incoming>,
    served: Arc<AtomicU64>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    while let Some(Ok(_)) = request.body_mut().frame().await {}
    served.fetch_add(1, Ordering::Relaxed);
    let mut response = Response::new(Empty::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
