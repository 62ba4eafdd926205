//! Payloads that can be judged by themselves: where they belong, which push item made them, and a filling that is
//! a function of that.

use xxhash_rust::xxh3::xxh3_64;

use crate::chance::Chance;

/// Where a message belongs and which push item it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label<'a> {
    /// Queue.
    pub queue: &'a str,
    /// Partition.
    pub partition: &'a str,
    /// Transaction id.
    pub transaction: &'a str,
    /// Number of the push item, unique in a history.
    pub item: u64,
}

/// The payload of an item, at least so many bytes.
#[must_use]
pub fn make(label: &Label<'_>, bytes: u64) -> Vec<u8> {
    let head = format!("{}|{}|{}|{}|", label.item, label.queue, label.partition, label.transaction);
    let mut payload = head.into_bytes();
    let mut filling = Chance::new(label.item, 7);
    while (payload.len() as u64) < bytes {
        payload.extend_from_slice(&filling.bits().to_le_bytes());
    }
    let sum = xxh3_64(&payload);
    payload.extend_from_slice(&sum.to_le_bytes());
    payload
}

/// The number of the push item that a payload claims to be, if it is whole.
///
/// # Errors
/// What is wrong with it.
pub fn item(payload: &[u8]) -> Result<u64, String> {
    let body = payload.len().checked_sub(8).ok_or("it is shorter than its checksum")?;
    let (body, sum) = payload.split_at_checked(body).ok_or("it is shorter than its checksum")?;
    if xxh3_64(body).to_le_bytes() != sum {
        return Err("its checksum does not match".to_owned());
    }
    let digits = body.split(|byte| *byte == b'|').next().unwrap_or_default();
    let text = std::str::from_utf8(digits).map_err(|error| error.to_string())?;
    text.parse().map_err(|error| format!("its item number is {text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::{Label, item, make};

    #[test]
    fn a_payload_names_its_item_and_notices_every_flipped_byte() {
        let label = Label { queue: "q", partition: "p", transaction: "t", item: 17 };
        let payload = make(&label, 100);
        assert_eq!(item(&payload), Ok(17));
        for index in 0..payload.len() {
            let mut flipped = payload.clone();
            if let Some(byte) = flipped.get_mut(index) {
                *byte ^= 1;
            }
            assert!(item(&flipped).is_err(), "byte {index}");
        }
    }
}
