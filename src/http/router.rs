//! Paths and methods: one table drives the router and `GET /openapi.json`.
//!
//! A path is split and matched raw; each matched segment is decoded afterwards, once.

use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Response};
use serde_json::{Map, Value, json};

use super::binary::{Kind, is_binary};
use super::body::{Answer, Received};
use super::error::ApiError;
use super::query::{Query, decode};
use super::server::Call;
use super::{ack, configure, consumer_groups, dlq, health, lease, pop, push, resources, transaction};
use crate::broker::command::PopTarget;

/// What a path and a method are about.
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
    Queues,
    Queue,
    QueueDelete,
    Depth,
    Partitions,
    Overview,
    Namespaces,
    Tasks,
    StatusQueues,
    StatusQueue,
    Groups,
    GroupsLagging,
    Group,
    Subscription,
    Seek,
    SeekPartition,
    GroupDelete,
    GroupDeleteQueue,
    Dlq,
    OpenApi,
    Health,
    Live,
}

/// Who may call a route where authentication is on. Levels are sets of roles, not a ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Public,
    ReadOnly,
    WriteOnly,
    ReadWrite,
    Admin,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Public => "public",
            Level::ReadOnly => "read-only",
            Level::WriteOnly => "write-only",
            Level::ReadWrite => "read-write",
            Level::Admin => "admin",
        }
    }
}

/// A row of the table: method, path, level, what answers, what it does.
struct Row(&'static str, &'static str, Level, Route, &'static str);

const TABLE: &[Row] = &[
    Row("POST", "/api/v1/push", Level::WriteOnly, Route::Push, "Store messages"),
    Row("GET", "/api/v1/pop", Level::ReadWrite, Route::Pop, "Deliver messages of a namespace or task"),
    Row("GET", "/api/v1/pop/queue/{queue}", Level::ReadWrite, Route::PopQueue, "Deliver messages of a queue"),
    Row(
        "GET",
        "/api/v1/pop/queue/{queue}/partition/{partition}",
        Level::ReadWrite,
        Route::PopPartition,
        "Deliver messages of a partition",
    ),
    Row("POST", "/api/v1/ack", Level::ReadWrite, Route::Ack, "Acknowledge messages"),
    Row("POST", "/api/v1/ack/batch", Level::ReadWrite, Route::Ack, "Acknowledge messages"),
    Row("POST", "/api/v1/lease/{id}/extend", Level::ReadWrite, Route::Extend, "Extend a lease"),
    Row("POST", "/api/v1/transaction", Level::ReadWrite, Route::Transaction, "Pushes and acks as one"),
    Row("POST", "/api/v1/configure", Level::ReadWrite, Route::Configure, "Create or change a queue"),
    Row("GET", "/api/v1/resources/queues", Level::ReadOnly, Route::Queues, "List queues"),
    Row(
        "GET",
        "/api/v1/resources/queues/{queue}",
        Level::ReadOnly,
        Route::Queue,
        "A queue with its partitions",
    ),
    Row("DELETE", "/api/v1/resources/queues/{queue}", Level::Admin, Route::QueueDelete, "Delete a queue"),
    Row("GET", "/api/v1/resources/queues/{queue}/depth", Level::ReadOnly, Route::Depth, "Backlog of a queue"),
    Row(
        "GET",
        "/api/v1/resources/partitions",
        Level::ReadOnly,
        Route::Partitions,
        "Partitions, most pending first",
    ),
    Row("GET", "/api/v1/resources/overview", Level::ReadOnly, Route::Overview, "Everything in numbers"),
    Row("GET", "/api/v1/resources/namespaces", Level::ReadOnly, Route::Namespaces, "Namespaces"),
    Row("GET", "/api/v1/resources/tasks", Level::ReadOnly, Route::Tasks, "Tasks"),
    Row("GET", "/api/v1/status/queues", Level::ReadOnly, Route::StatusQueues, "Queues in numbers"),
    Row("GET", "/api/v1/status/queues/{queue}", Level::ReadOnly, Route::StatusQueue, "A queue in numbers"),
    Row("GET", "/api/v1/consumer-groups", Level::ReadOnly, Route::Groups, "Consumer groups by queue"),
    Row(
        "GET",
        "/api/v1/consumer-groups/lagging",
        Level::ReadOnly,
        Route::GroupsLagging,
        "Partitions in which a group is behind",
    ),
    Row(
        "GET",
        "/api/v1/consumer-groups/{group}",
        Level::ReadOnly,
        Route::Group,
        "A consumer group's cursors",
    ),
    Row(
        "DELETE",
        "/api/v1/consumer-groups/{group}",
        Level::Admin,
        Route::GroupDelete,
        "Forget a consumer group's cursors in all queues",
    ),
    Row(
        "POST",
        "/api/v1/consumer-groups/{group}/subscription",
        Level::ReadWrite,
        Route::Subscription,
        "Where a consumer group begins in partitions that it has not met",
    ),
    Row(
        "DELETE",
        "/api/v1/consumer-groups/{group}/queues/{queue}",
        Level::Admin,
        Route::GroupDeleteQueue,
        "Forget a consumer group's cursors in a queue",
    ),
    Row(
        "POST",
        "/api/v1/consumer-groups/{group}/queues/{queue}/seek",
        Level::ReadWrite,
        Route::Seek,
        "Move a consumer group's cursors in a queue",
    ),
    Row(
        "POST",
        "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
        Level::ReadWrite,
        Route::SeekPartition,
        "Move a consumer group's cursor in a partition",
    ),
    Row("GET", "/api/v1/dlq", Level::ReadOnly, Route::Dlq, "List dead letters"),
    Row("GET", "/openapi.json", Level::Public, Route::OpenApi, "This table"),
    Row("GET", "/health", Level::Public, Route::Health, "Whether requests are served"),
    Row("GET", "/health/live", Level::Public, Route::Live, "Whether the process is alive"),
];

impl Route {
    /// A pop takes nothing but GET: whatever asks about it must not claim messages, so HEAD and OPTIONS are refused.
    fn claims(self) -> bool {
        matches!(self, Route::Pop | Route::PopQueue | Route::PopPartition)
    }
}

/// What a path takes.
struct Methods {
    routes: Vec<(&'static str, Route)>,
    /// As `Allow` lists them.
    allow: String,
}

/// The router.
pub(crate) struct Router(matchit::Router<Methods>);

impl Router {
    pub(crate) fn new() -> Router {
        let mut router = matchit::Router::new();
        let mut paths: Vec<&str> = TABLE.iter().map(|row| row.1).collect();
        paths.dedup();
        for path in paths {
            let routes: Vec<(&str, Route)> =
                TABLE.iter().filter(|row| row.1 == path).map(|row| (row.0, row.3)).collect();
            let mut allow: Vec<&str> = routes.iter().map(|(method, _)| *method).collect();
            if !routes.iter().any(|(_, route)| route.claims()) {
                if allow.contains(&"GET") {
                    allow.push("HEAD");
                }
                allow.push("OPTIONS");
            }
            let allow = allow.join(", ");
            router.insert(path, Methods { routes, allow }).expect("the paths of the table do not conflict");
        }
        Router(router)
    }

    /// Answers a request.
    pub(crate) async fn answer(&self, call: &mut Call) -> Result<Response<Answer>, ApiError> {
        let uri = call.parts.uri.clone();
        let found = self.0.at(uri.path()).map_err(|_| ApiError::no_such_route())?;
        let parameter = |name: &str| decode(found.params.get(name).unwrap_or_default());
        let Methods { routes, allow } = found.value;
        let method = &call.parts.method;
        if !allow.split(", ").any(|allowed| allowed == method.as_str()) {
            return Err(ApiError::method_not_allowed(allow));
        }
        if method == Method::OPTIONS {
            let mut response = super::no_content();
            let allow =
                HeaderValue::from_str(allow).map_err(|error| ApiError::internal(error.to_string()))?;
            response.headers_mut().insert(ALLOW, allow);
            return Ok(response);
        }
        let wanted = if method == Method::HEAD { "GET" } else { method.as_str() };
        let Some((_, route)) = routes.iter().find(|(known, _)| *known == wanted) else {
            return Err(ApiError::method_not_allowed(allow));
        };
        let query = Query::parse(uri.query())?;
        let app = call.app.clone();
        let text = |name: &str| parameter(name).map(std::borrow::Cow::into_owned);
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
            Route::PopQueue => pop::pop(&app, PopTarget::Queue(text("queue")?), &query).await,
            Route::PopPartition => {
                let (queue, partition) = (text("queue")?, text("partition")?);
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
            Route::Queues => resources::queues(&app, &query).await,
            Route::Queue => resources::queue(&app, text("queue")?).await,
            Route::QueueDelete => configure::delete(&app, text("queue")?).await,
            Route::Depth => resources::depth(&app, text("queue")?, &query).await,
            Route::Partitions => resources::partitions(&app, &query).await,
            Route::Overview => resources::overview(&app).await,
            Route::Namespaces => resources::labels(&app, "namespace", "namespaces").await,
            Route::Tasks => resources::labels(&app, "task", "tasks").await,
            Route::StatusQueues => resources::status_queues(&app, &query).await,
            Route::StatusQueue => resources::status_queue(&app, text("queue")?).await,
            Route::Groups => consumer_groups::list(&app).await,
            Route::GroupsLagging => consumer_groups::lagging(&app, &query).await,
            Route::Group => consumer_groups::detail(&app, text("group")?).await,
            Route::Subscription => {
                let group = text("group")?;
                consumer_groups::subscription(&app, group, call.receive().await?).await
            }
            Route::Seek => {
                let (group, queue) = (text("group")?, text("queue")?);
                consumer_groups::seek(&app, group, queue, None, call.receive().await?).await
            }
            Route::SeekPartition => {
                let (group, queue, partition) = (text("group")?, text("queue")?, text("partition")?);
                consumer_groups::seek(&app, group, queue, Some(partition), call.receive().await?).await
            }
            Route::GroupDelete => consumer_groups::delete(&app, text("group")?, None, &query).await,
            Route::GroupDeleteQueue => {
                let (group, queue) = (text("group")?, text("queue")?);
                consumer_groups::delete(&app, group, Some(queue), &query).await
            }
            Route::Dlq => dlq::list(&app, &query).await,
            Route::OpenApi => Ok(super::json_value(&openapi())),
            Route::Health => Ok(health::readiness(&app)),
            Route::Live => Ok(health::liveness()),
        }
    }
}

/// The table as an OpenAPI document: paths, methods, parameters of paths, levels. Bodies are described in
/// docs/PROTOCOL.md.
fn openapi() -> Value {
    let mut paths = Map::new();
    for Row(method, path, level, _, about) in TABLE {
        let parameters: Vec<Value> = path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
            .collect();
        let operation = json!({
            "summary": about,
            "parameters": parameters,
            "x-comb-level": level.name(),
            "responses": {
                "2XX": {"description": "done; see docs/PROTOCOL.md for the shape"},
                "4XX": {"description": "refused, nothing was changed: {\"error\",\"code\"}"},
                "5XX": {"description": "not done, or the outcome is unknown: {\"error\",\"code\"}"},
            },
        });
        let methods = paths.entry((*path).to_owned()).or_insert_with(|| json!({}));
        if let Some(methods) = methods.as_object_mut() {
            methods.insert(method.to_ascii_lowercase(), operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Comb", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
    })
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
        assert_eq!(found.value.routes, [("GET", Route::PopPartition)]);
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
        assert_eq!(router.0.at("/api/v1/ack/batch").unwrap().value.routes, [("POST", Route::Ack)]);
        let static_wins = router.0.at("/api/v1/consumer-groups/lagging").unwrap();
        assert_eq!(static_wins.value.routes, [("GET", Route::GroupsLagging)]);
    }
}
