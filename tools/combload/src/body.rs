//! Push bodies that are built once and patched per request.
//!
//! Every field that changes has a fixed width, so a request costs a copy of the template and a few digits.

use std::fmt::Write as _;

use bytes::Bytes;

use crate::LoadError;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Writes a number as fixed-width hexadecimal digits, lowest digits last; higher ones that do not fit are cut.
fn patch(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = HEX.get((number & 15) as usize).copied().unwrap_or(b'0');
        number >>= 4;
    }
}

/// Who sends: a run and a producer in it. Twelve hexadecimal digits in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Producer {
    /// Run; random enough that two runs do not meet in one queue.
    pub(crate) run: u32,
    /// Producer in the run, below 4096.
    pub(crate) number: u16,
}

impl Producer {
    /// The text in payloads and ledgers.
    pub(crate) fn text(self) -> String {
        format!("{:08x}{:04x}", self.run, self.number)
    }

    /// Transaction id of a message: the canonical text of a UUID.
    pub(crate) fn transaction_id(self, sequence: u64) -> String {
        let hex = format!("{:08x}00007{:03x}8{:015x}", self.run, self.number & 0xfff, sequence);
        let (a, rest) = hex.split_at(8);
        let (b, rest) = rest.split_at(4);
        let (c, rest) = rest.split_at(4);
        let (d, e) = rest.split_at(4);
        format!("{a}-{b}-{c}-{d}-{e}")
    }
}

/// Where the changing fields of one item are in the template.
struct Places {
    partition: usize,
    /// Position of the last 15 digits of the transaction id, which are split by a hyphen after three.
    transaction: usize,
    sequence: usize,
    time: usize,
}

/// Digits of a partition's number in its name `p0000000`.
const PARTITION_DIGITS: usize = 7;

/// A push request's body with everything but the changing digits in place.
pub(crate) struct Template {
    bytes: Vec<u8>,
    places: Vec<Places>,
}

/// Payload without padding: `{"p":"…12","s":"…16","t":"…16","x":""}`.
const PAYLOAD_LEAST: usize = 73;

impl Template {
    /// A template of `batch` items with payloads of exactly `payload` bytes.
    ///
    /// # Errors
    /// `LoadError::Payload` if the changing fields do not fit.
    pub(crate) fn new(
        queue: &str,
        producer: Producer,
        batch: usize,
        payload: usize,
    ) -> Result<Template, LoadError> {
        let Some(padding) = payload.checked_sub(PAYLOAD_LEAST) else {
            return Err(LoadError::Payload { asked: payload, least: PAYLOAD_LEAST });
        };
        let mut noise = Noise::seeded(producer);
        let mut text = String::from("{\"items\":[");
        let mut places = Vec::with_capacity(batch);
        for item in 0..batch {
            if item > 0 {
                text.push(',');
            }
            let _ = write!(text, "{{\"queue\":\"{queue}\",\"partition\":\"p");
            let partition = text.len();
            text.push_str("0000000\",\"transactionId\":\"");
            // xxxxxxxx-xxxx-xxxx-8: the fifteen digits begin at the twentieth character.
            let transaction = text.len() + 20;
            text.push_str(&producer.transaction_id(0));
            let _ = write!(text, "\",\"payload\":{{\"p\":\"{}\",\"s\":\"", producer.text());
            let sequence = text.len();
            text.push_str("0000000000000000\",\"t\":\"");
            let time = text.len();
            text.push_str("0000000000000000\",\"x\":\"");
            for _ in 0..padding {
                text.push(noise.letter());
            }
            text.push_str("\"}}");
            places.push(Places { partition, transaction, sequence, time });
        }
        text.push_str("]}");
        Ok(Template { bytes: text.into_bytes(), places })
    }

    /// The body of one request: messages `first..first + batch` for one partition, stamped with one time.
    pub(crate) fn fill(&self, partition: usize, first: u64, time_us: u64) -> Bytes {
        let mut bytes = self.bytes.clone();
        let mut put = |at: usize, digits: usize, number: u64| {
            if let Some(place) = bytes.get_mut(at..at + digits) {
                patch(place, number);
            }
        };
        for (places, sequence) in self.places.iter().zip(first..) {
            put(places.partition, PARTITION_DIGITS, partition as u64);
            put(places.transaction, 3, sequence >> 48);
            put(places.transaction + 4, 12, sequence);
            put(places.sequence, 16, sequence);
            put(places.time, 16, time_us);
        }
        Bytes::from(bytes)
    }
}

/// Deterministic letters that do not compress well: xorshift.
struct Noise(u64);

impl Noise {
    fn seeded(producer: Producer) -> Noise {
        // The run is left out, so that equal options give equal payloads.
        Noise(0x9e37_79b9_7f4a_7c15 ^ (u64::from(producer.number) + 1))
    }

    fn letter(&mut self) -> char {
        const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        char::from(LETTERS.get((self.0 >> 58) as usize).copied().unwrap_or(b'-'))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_filled_body_is_what_the_protocol_wants() {
        let producer = Producer { run: 0xdead_beef, number: 0x123 };
        let template = Template::new("orders", producer, 3, 256).unwrap();
        let first = 0x0123_4567_89ab_cdef;
        let body = template.fill(10, first, 77);
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let items = json["items"].as_array().unwrap();
        assert_eq!(items.len(), 3);
        for (item, sequence) in items.iter().zip(first..) {
            assert_eq!(item["queue"], "orders");
            assert_eq!(item["partition"], "p000000a");
            assert_eq!(item["transactionId"], producer.transaction_id(sequence).as_str());
            assert_eq!(item["payload"]["p"], "deadbeef0123");
            assert_eq!(item["payload"]["s"], format!("{sequence:016x}").as_str());
            assert_eq!(item["payload"]["t"], "000000000000004d");
            assert_eq!(serde_json::to_string(&item["payload"]).unwrap().len(), 256);
        }
        // Nothing of the first request is left in the next one.
        let again: serde_json::Value = serde_json::from_slice(&template.fill(0, 5, 0)).unwrap();
        assert_eq!(again["items"][0]["transactionId"], producer.transaction_id(5).as_str());
    }

    #[test]
    fn transaction_ids_are_uuids_and_differ() {
        let producer = Producer { run: 1, number: 4095 };
        let id = producer.transaction_id(0xfff_ffff_ffff_ffff);
        assert_eq!(id, "00000001-0000-7fff-8fff-ffffffffffff");
        assert_ne!(producer.transaction_id(1), producer.transaction_id(2));
        assert_ne!(producer.transaction_id(1), Producer { run: 1, number: 4094 }.transaction_id(1));
    }

    #[test]
    fn a_payload_that_is_too_small_is_refused() {
        let producer = Producer { run: 1, number: 0 };
        assert!(Template::new("q", producer, 1, PAYLOAD_LEAST - 1).is_err());
        let body = Template::new("q", producer, 1, PAYLOAD_LEAST).unwrap().fill(0, 0, 0);
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(serde_json::to_string(&json["items"][0]["payload"]).unwrap().len(), PAYLOAD_LEAST);
    }

    #[test]
    fn padding_is_the_same_in_every_run() {
        let one = Template::new("q", Producer { run: 1, number: 3 }, 2, 300).unwrap();
        let two = Template::new("q", Producer { run: 2, number: 3 }, 2, 300).unwrap();
        let pad = |template: &Template| {
            let json: serde_json::Value = serde_json::from_slice(&template.fill(0, 0, 0)).unwrap();
            json["items"][1]["payload"]["x"].clone()
        };
        assert_eq!(pad(&one), pad(&two));
    }
}
