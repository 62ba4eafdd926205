//! Names and identifiers as clients send them.

use crate::broker::command::{BrokerError, Reference};
use crate::http::error::ApiError;
use crate::types::{LeaseId, PartitionId, name_bytes};

/// Bounds names: tenant, queue and the longer of partition and group, in bytes.
///
/// # Errors
/// 413 `name_too_long`.
pub(crate) fn check_names(queue: &str, partition: &str, group: &str, limit: u32) -> Result<(), ApiError> {
    let bytes = name_bytes(queue, partition, group);
    let limit = u64::from(limit);
    if bytes > limit { Err(BrokerError::NameTooLong { bytes, limit }.into()) } else { Ok(()) }
}

/// A lease id: the hyphenated text of a UUID.
pub(crate) fn lease_reference(text: Option<&str>) -> Reference<LeaseId> {
    match text {
        None => Reference::Absent,
        Some(text) => match uuid(text) {
            Some(id) => Reference::Id(LeaseId(id)),
            None => Reference::Malformed,
        },
    }
}

/// A partition id: a decimal number as it is written by us.
pub(crate) fn partition_reference(text: Option<&str>) -> Reference<PartitionId> {
    match text {
        None => Reference::Absent,
        Some(text) => match text.parse::<u64>() {
            Ok(id) if id.to_string() == text => Reference::Id(PartitionId(id)),
            _ => Reference::Malformed,
        },
    }
}

/// The number of a hyphenated UUID text.
pub(crate) fn uuid(text: &str) -> Option<u128> {
    if text.len() != 36 {
        return None;
    }
    uuid::Uuid::try_parse(text).ok().map(|id| id.as_u128())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_limit_is_exact_and_counts_bytes() {
        let ok = |queue: usize, partition: usize, group: usize| {
            check_names(&"q".repeat(queue), &"p".repeat(partition), &"g".repeat(group), 447).is_ok()
        };
        assert!(ok(400, 11, 10));
        assert!(!ok(400, 12, 10));
        assert!(!ok(400, 0, 12));
        assert!(check_names(&"é".repeat(205), "p", "", 447).is_ok());
        assert!(check_names(&"é".repeat(206), "", "", 447).is_err());
    }

    #[test]
    fn references() {
        assert_eq!(partition_reference(None), Reference::Absent);
        assert_eq!(partition_reference(Some("17")), Reference::Id(PartitionId(17)));
        for text in ["+17", "017", "-1", "1.0", "18446744073709551616", "x", " 1"] {
            assert_eq!(partition_reference(Some(text)), Reference::Malformed, "{text}");
        }
        let text = "01930000-0000-7000-8000-000000000001";
        assert_eq!(
            lease_reference(Some(text)),
            Reference::Id(LeaseId(0x0193_0000_0000_7000_8000_0000_0000_0001))
        );
        assert_eq!(lease_reference(Some("0193000000007000800000000000000001")), Reference::Malformed);
    }
}
