//! One keep-alive connection, one request in flight.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;

use crate::LoadError;

/// Largest answer that is taken.
const ANSWER_BYTES: usize = 256 << 20;

/// Pause between attempts to get a lost connection back, and how many there are.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
const RECONNECT_ATTEMPTS: u32 = 100;

/// Why a request has no answer.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    /// The connection broke.
    #[error("connection lost: {0}")]
    Lost(#[from] hyper::Error),
    /// The answer broke off or was too large.
    #[error("answer unreadable: {0}")]
    Answer(Box<dyn std::error::Error + Send + Sync>),
}

/// A connection.
pub(crate) struct Client {
    address: String,
    host: HeaderValue,
    sender: SendRequest<Full<Bytes>>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Nothing listens at the address, or it is none.
    pub(crate) async fn connect(address: &str) -> Result<Client, LoadError> {
        let connect = |source| LoadError::Connect { address: address.to_owned(), source };
        let host = HeaderValue::from_str(address)
            .map_err(|e| connect(std::io::Error::new(std::io::ErrorKind::InvalidInput, e)))?;
        let sender = handshake(address).await?;
        Ok(Client { address: address.to_owned(), host, sender })
    }

    /// Gets a lost connection back.
    ///
    /// # Errors
    /// The last failure after ten seconds.
    pub(crate) async fn reconnect(&mut self) -> Result<(), LoadError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match handshake(&self.address).await {
                Ok(sender) => {
                    self.sender = sender;
                    return Ok(());
                }
                Err(error) if attempt == RECONNECT_ATTEMPTS => return Err(error),
                Err(_) => tokio::time::sleep(RECONNECT_PAUSE).await,
            }
        }
    }

    /// Sends a body and reads the answer.
    ///
    /// # Errors
    /// The connection broke; whether the request was carried out is unknown.
    pub(crate) async fn post(&mut self, uri: &Uri, body: Bytes) -> Result<(StatusCode, Bytes), SendError> {
        let mut request = self.request(Method::POST, uri, body);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(request).await
    }

    /// Sends a request without a body and reads the answer.
    ///
    /// # Errors
    /// The connection broke; whether the request was carried out is unknown.
    pub(crate) async fn get(&mut self, uri: &Uri) -> Result<(StatusCode, Bytes), SendError> {
        self.send(self.request(Method::GET, uri, Bytes::new())).await
    }

    fn request(&self, method: Method, uri: &Uri, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri.clone();
        request.headers_mut().insert(HOST, self.host.clone());
        request
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), SendError> {
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let status = answer.status();
        let body =
            Limited::new(answer.into_body(), ANSWER_BYTES).collect().await.map_err(SendError::Answer)?;
        Ok((status, body.to_bytes()))
    }
}

async fn handshake(address: &str) -> Result<SendRequest<Full<Bytes>>, LoadError> {
    let connect = |source| LoadError::Connect { address: address.to_owned(), source };
    let stream = TcpStream::connect(address).await.map_err(connect)?;
    stream.set_nodelay(true).map_err(connect)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|source| LoadError::Http { address: address.to_owned(), source })?;
    // Its end shows at the next request, as an error of that request.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}
