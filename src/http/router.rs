//! Paths and methods. A path is split and matched raw; each matched segment is decoded afterwards, once.

use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Response};

use super::binary::{Kind, is_binary};
use super::body::{Answer, Received};
use super::error::ApiError;
use super::query::{Query, decode};
use super::server::Call;
use super::{ack, configure, dlq, health, lease, pop, push, transaction};
use crate::broker::command::PopTarget;

/// What a path is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Push,
    Pop,
    PopQueue,
    PopPartition,
    Ack,
    Extend,
    Transaction,
    Configure,
    Queue,
    Dlq,
    Health,
    Live,
}

const ROUTES: &[(&str, Route)] = &[
    ("/api/v1/push", Route::Push),
    ("/api/v1/pop", Route::Pop),
    ("/api/v1/pop/queue/{queue}", Route::PopQueue),
    ("/api/v1/pop/queue/{queue}/partition/{partition}", Route::PopPartition),
    ("/api/v1/ack", Route::Ack),
    ("/api/v1/ack/batch", Route::Ack),
    ("/api/v1/lease/{id}/extend", Route::Extend),
    ("/api/v1/transaction", Route::Transaction),
    ("/api/v1/configure", Route::Configure),
    ("/api/v1/resources/queues/{queue}", Route::Queue),
    ("/api/v1/dlq", Route::Dlq),
    ("/health", Route::Health),
    ("/health/live", Route::Live),
];

impl Route {
    /// The methods of the path, as `Allow` lists them. A pop takes nothing but GET: whatever asks about it must not
    /// claim messages, so HEAD and OPTIONS are refused there.
    fn allow(self) -> &'static str {
        match self {
            Route::Push | Route::Ack | Route::Extend | Route::Transaction | Route::Configure => {
                "POST, OPTIONS"
            }
            Route::Pop | Route::PopQueue | Route::PopPartition => "GET",
            Route::Queue => "DELETE, OPTIONS",
            Route::Dlq | Route::Health | Route::Live => "GET, HEAD, OPTIONS",
        }
    }
}

/// The router's table.
pub(crate) struct Router(matchit::Router<Route>);

impl Router {
    pub(crate) fn new() -> Router {
        let mut router = matchit::Router::new();
        for (path, route) in ROUTES {
            router.insert(*path, *route).expect("the paths of the table do not conflict");
        }
        Router(router)
    }

    /// Answers a request.
    pub(crate) async fn answer(&self, call: &mut Call) -> Result<Response<Answer>, ApiError> {
        let uri = call.parts.uri.clone();
        let path = uri.path();
        let found = self.0.at(path).map_err(|_| ApiError::no_such_route())?;
        let route = *found.value;
        let parameter = |name: &str| decode(found.params.get(name).unwrap_or_default());
        let allow = route.allow();
        let method = &call.parts.method;
        if method == Method::OPTIONS && allow.contains("OPTIONS") {
            let mut response = super::no_content();
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
            return Ok(response);
        }
        if !allow.split(", ").any(|allowed| allowed == method.as_str()) {
            return Err(ApiError::method_not_allowed(allow));
        }
        let query = Query::parse(uri.query())?;
        let app = call.app.clone();
        match route {
            Route::Push => {
                let (binary, body) = body(call, Some(Kind::Push)).await?;
                push::push(&app, binary, body).await
            }
            Route::Pop => {
                let namespace = query.text("namespace").map(str::to_owned);
                let task = query.text("task").map(str::to_owned);
                pop::pop(&app, PopTarget::Discovery { namespace, task }, &query).await
            }
            Route::PopQueue => {
                pop::pop(&app, PopTarget::Queue(parameter("queue")?.into_owned()), &query).await
            }
            Route::PopPartition => {
                let (queue, partition) =
                    (parameter("queue")?.into_owned(), parameter("partition")?.into_owned());
                pop::pop(&app, PopTarget::Partition { queue, partition }, &query).await
            }
            Route::Ack => ack::ack(&app, json_body(call).await?).await,
            Route::Extend => {
                let id = parameter("id")?;
                lease::extend(&app, &id, call.receive().await?).await
            }
            Route::Transaction => {
                let (binary, body) = body(call, Some(Kind::Transaction)).await?;
                transaction::transaction(&app, binary, body).await
            }
            Route::Configure => configure::configure(&app, json_body(call).await?).await,
            Route::Queue => configure::delete(&app, parameter("queue")?.into_owned()).await,
            Route::Dlq => dlq::list(&app, &query).await,
            Route::Health => Ok(health::readiness(&app)),
            Route::Live => Ok(health::liveness()),
        }
    }
}

/// A body that must be JSON.
async fn json_body(call: &mut Call) -> Result<Received, ApiError> {
    Ok(body(call, None).await?.1)
}

/// A body, and whether it is the binary form that the route takes.
async fn body(call: &mut Call, kind: Option<Kind>) -> Result<(bool, Received), ApiError> {
    // Refused before the body is asked for when there is no broker yet.
    call.app.handle()?;
    let received = call.receive().await?;
    let content_type =
        call.parts.headers.get(hyper::header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let binary = is_binary(content_type, &received.bytes, kind)?;
    Ok((binary, received))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_slash_in_a_name_stays_in_its_segment() {
        let router = Router::new();
        let found = router.0.at("/api/v1/pop/queue/a%2Fb/partition/c%20d").unwrap();
        assert_eq!(*found.value, Route::PopPartition);
        assert_eq!(found.params.get("queue"), Some("a%2Fb"));
        for path in [
            "/api/v1/pop/queue/",
            "/api/v1/pop/queue/a/",
            "/api/v1/pop/queue//partition/p",
            "/api/v1/push/",
            "/",
        ] {
            assert!(router.0.at(path).is_err(), "{path}");
        }
        assert_eq!(*router.0.at("/api/v1/ack/batch").unwrap().value, Route::Ack);
    }
}
