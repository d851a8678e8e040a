//! Text at places of a buffer, in few styles: a terminal may have no colours and no UTF-8.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use crate::rates::Flow;

/// What the terminal can show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) color: bool,
    pub(super) unicode: bool,
}

impl Look {
    /// By `NO_COLOR` (no-color.org) and the locale.
    pub(super) fn of_environment() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
        let locale = locale.to_lowercase();
        Self { color: set("NO_COLOR").is_none(), unicode: locale.contains("utf-8") || locale.contains("utf8") }
    }

    fn style(self, tone: Tone) -> Style {
        let plain = Style::new();
        let colored = |color: Color| if self.color { plain.fg(color) } else { plain };
        match tone {
            Tone::Plain => plain,
            Tone::Faint => plain.add_modifier(Modifier::DIM),
            Tone::Strong => plain.add_modifier(Modifier::BOLD),
            Tone::Good => colored(Color::Green),
            Tone::Warn => colored(Color::Yellow),
            Tone::Bad => colored(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Flow => colored(Color::Cyan),
            Tone::Selected => plain.add_modifier(Modifier::REVERSED),
            Tone::Alarm => colored(Color::Red).add_modifier(Modifier::REVERSED | Modifier::BOLD),
        }
    }
}

/// Meaning of a text, from which its style follows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tone {
    Plain,
    Faint,
    Strong,
    Good,
    Warn,
    Bad,
    Flow,
    Selected,
    Alarm,
}

/// Writes into a buffer.
pub(super) struct Pen<'a> {
    pub(super) buffer: &'a mut Buffer,
    pub(super) look: Look,
}

impl Pen<'_> {
    pub(super) fn width(&self) -> u16 {
        self.buffer.area.width
    }

    pub(super) fn height(&self) -> u16 {
        self.buffer.area.height
    }

    /// Writes `text`, cut to `width` columns.
    pub(super) fn put(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) {
        self.put_on(x, y, width, text, tone);
    }

    /// The same; returns the column after it.
    pub(super) fn put_on(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) -> u16 {
        if x >= self.width() || y >= self.height() {
            return x;
        }
        let style = self.look.style(tone);
        self.buffer.set_stringn(x, y, self.plain(text), width.min(self.width() - x).into(), style).0
    }

    /// The same, aligned to the right of the `width` columns.
    pub(super) fn put_right(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) {
        let free = width.saturating_sub(text.chars().count().min(u16::MAX.into()) as u16);
        self.put(x + free, y, width - free, text, tone);
    }

    /// Gives a whole line one style.
    pub(super) fn tint(&mut self, y: u16, tone: Tone) {
        let (width, style) = (self.width(), self.look.style(tone));
        if y < self.height() {
            self.buffer.set_style(Rect { x: 0, y, width, height: 1 }, style);
        }
    }

    /// Throughput over time, newest on the right, as a fraction of its largest value.
    pub(super) fn spark(
        &mut self,
        x: u16,
        y: u16,
        width: u16,
        flows: impl DoubleEndedIterator<Item = f32>,
        tone: Tone,
    ) {
        const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        const LETTERS: [char; 8] = ['.', '.', ':', ':', '+', '+', '#', '#'];
        let bars = if self.look.unicode { BARS } else { LETTERS };
        let newest: Vec<f32> = flows.rev().take(width.into()).collect();
        let most = newest.iter().copied().fold(0.0, f32::max);
        let bar = |flow: f32| match flow {
            flow if flow <= 0.0 => ' ',
            flow => bars[((flow / most * 8.0).ceil() as usize).clamp(1, 8) - 1],
        };
        let text: String = newest.iter().rev().map(|flow| bar(*flow)).collect();
        self.put_right(x, y, width, &text, tone);
    }

    /// A share from 0 to 1 as a bar.
    pub(super) fn bar(&mut self, x: u16, y: u16, width: u16, share: f64, tone: Tone) {
        let full = (share.clamp(0.0, 1.0) * f64::from(width)).round() as usize;
        let (on, off) = if self.look.unicode { ("█", "░") } else { ("#", ".") };
        self.put(x, y, width, &on.repeat(full), tone);
        self.put(x + full as u16, y, width - full as u16, &off.repeat(usize::from(width) - full), Tone::Faint);
    }

    /// Characters that a terminal without UTF-8 cannot show are replaced.
    fn plain(&self, text: &str) -> String {
        if self.look.unicode {
            return text.to_owned();
        }
        let ascii = |c: char| match c {
            '…' => "~".to_owned(),
            '↑' => "Up".to_owned(),
            '↓' => "Down".to_owned(),
            c if c.is_ascii() => c.to_string(),
            _ => "?".to_owned(),
        };
        text.replace(" …", " ...").chars().map(ascii).collect()
    }
}

/// Both directions of a row's history.
pub(super) fn most(flows: &std::collections::VecDeque<Flow>) -> impl DoubleEndedIterator<Item = f32> {
    flows.iter().map(|flow| flow.most())
}

/// A time in at most six columns: `59 s`, `59 min`, `23h59`, `9d23h`.
pub(super) fn brief(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, m) => format!("{m} min"),
        (0, h, m) => format!("{h}h{m:02}"),
        (d, h, _) if d < 100 => format!("{d}d{h:02}h"),
        (d, ..) => format!("{d} d"),
    }
}
