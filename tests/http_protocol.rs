//! The HTTP layer against a scripted broker: what reaches it, what its answers become, and what never gets that far.
//!
//! Requests are written as raw bytes, so that the malformed ones can be, too.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

#[path = "http_protocol/binary.rs"]
mod binary;
#[path = "http_protocol/delivery.rs"]
mod delivery;
#[path = "common/frames.rs"]
mod frames;
#[path = "http_protocol/framing.rs"]
mod framing;
#[path = "http_protocol/harness.rs"]
mod harness;
#[path = "http_protocol/json.rs"]
mod json;
#[path = "http_protocol/limits.rs"]
mod limits;
#[path = "http_protocol/routes.rs"]
mod routes;
#[path = "http_protocol/shapes.rs"]
mod shapes;
#[path = "http_protocol/slow.rs"]
mod slow;
