//! Just enough of an event-stream reader (WHATWG HTML, section 9.2) for stories to read what was really sent.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    pub event: String,
    pub id: String,
    pub data: String,
}

/// Reads frames from a response as they come.
pub struct Frames {
    response: reqwest::Response,
    buffer: String,
}

impl Frames {
    #[must_use]
    pub fn of(response: reqwest::Response) -> Self {
        Self {
            response,
            buffer: String::new(),
        }
    }

    /// The next frame with data; comments and `retry` fields are passed over. `None` when the stream ends.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            while let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                let frame = parse(&block);
                if !frame.data.is_empty() {
                    return Some(frame);
                }
            }
            let chunk = self.response.chunk().await.ok()??;
            self.buffer.push_str(&String::from_utf8_lossy(&chunk));
        }
    }
}

fn parse(block: &str) -> Frame {
    let mut frame = Frame::default();
    for line in block.lines() {
        let Some((field, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut frame.event),
            "id" => value.clone_into(&mut frame.id),
            "data" => {
                if !frame.data.is_empty() {
                    frame.data.push('\n');
                }
                frame.data.push_str(value);
            }
            _ => {}
        }
    }
    frame
}
