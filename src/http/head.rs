//! Looks at the raw head of a request for what a parser has already decided: whether its length can be read in two
//! ways, or its lines end in two ways. A proxy in front may have decided otherwise, and then a request hides in a body.

/// Longest line kept for a look at its name; longer ones are no length headers.
const LINE_BYTES: usize = 64;

/// Reads a head as it arrives.
#[derive(Debug, Default)]
pub(crate) struct HeadScan {
    done: bool,
    /// The request line was seen.
    begun: bool,
    /// Beginning of the line that is not complete yet.
    line: Vec<u8>,
    /// Bytes of that line, kept or not, and its last one.
    line_bytes: usize,
    last: u8,
    lengths: u32,
    encodings: u32,
    bare: bool,
}

/// What a complete head is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// It can be read in two ways.
    pub(crate) ambiguous: bool,
    /// Bytes of a body, or of the next request, came with its end.
    pub(crate) more: bool,
}

impl HeadScan {
    /// A scan that sees nothing: the beginning of the head was missed.
    pub(crate) fn blind() -> HeadScan {
        HeadScan { done: true, ..HeadScan::default() }
    }

    /// Takes more bytes. `Some` once, when they complete the head.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Option<Verdict> {
        if self.done {
            return None;
        }
        let mut taken = 0;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            taken += part.len();
            let (line, complete) = match part.strip_suffix(b"\n") {
                Some(line) => (line, true),
                None => (part, false),
            };
            let room = LINE_BYTES.saturating_sub(self.line.len()).min(line.len());
            self.line.extend_from_slice(line.split_at(room).0);
            self.line_bytes += line.len();
            self.last = line.last().copied().unwrap_or(self.last);
            if complete && self.line_ends() {
                self.done = true;
                let ambiguous = self.bare
                    || self.lengths > 1
                    || self.encodings > 1
                    || (self.lengths > 0 && self.encodings > 0);
                return Some(Verdict { ambiguous, more: taken < bytes.len() });
            }
        }
        None
    }

    /// Takes stock of a complete line. True when it ends the head.
    fn line_ends(&mut self) -> bool {
        let carriage_return = self.line_bytes > 0 && self.last == b'\r';
        self.bare |= !carriage_return;
        let empty = self.line_bytes == usize::from(carriage_return);
        let name = self.line.split(|byte| *byte == b':').next().unwrap_or_default();
        if name.eq_ignore_ascii_case(b"content-length") {
            self.lengths += 1;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.encodings += 1;
        }
        self.line.clear();
        self.line_bytes = 0;
        self.last = 0;
        // Empty lines before the request line are allowed.
        let ends = empty && self.begun;
        self.begun |= !empty;
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let cases: &[(&str, Option<bool>)] = &[
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Some(false)),
            ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nbody\nbody", Some(false)),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", Some(false)),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", Some(true)),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nCONTENT-LENGTH: 3\r\n\r\n", Some(true)),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", Some(true)),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: a\r\nTransfer-Encoding: chunked\r\n\r\n", Some(true)),
            ("GET / HTTP/1.1\nHost: a\n\n", Some(true)),
            ("GET / HTTP/1.1\r\nHost: a\n\r\n", Some(true)),
            ("GET / HTTP/1.1\r\nHost: a\r\n", None),
        ];
        for (head, verdict) in cases {
            let quick = HeadScan::default().feed(head.as_bytes());
            assert_eq!(quick.map(|seen| seen.ambiguous), *verdict, "{head:?} at once");
            assert_eq!(quick.is_some_and(|seen| seen.more), head.ends_with("body"), "{head:?}");
            let mut scan = HeadScan::default();
            let slow = head.bytes().find_map(|byte| scan.feed(&[byte]));
            assert_eq!(slow.map(|seen| seen.ambiguous), *verdict, "{head:?} byte by byte");
        }
    }
}
