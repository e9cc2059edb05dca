//! Text that somebody else makes, shown as `mbal top` shows a server: a page after the other until it is ended.

use std::io;

use ratatui::Frame;
use ratatui::text::Text;
use ratatui::widgets::Paragraph;

use crate::Source;

/// What is to be seen now, for people and for programs; or why there is nothing.
pub struct Page {
    pub text: String,
    /// One line.
    pub json: String,
}

pub(crate) struct Pages<F> {
    next: F,
    page: Page,
}

impl<F: FnMut() -> Result<Page, String>> Pages<F> {
    pub fn begin(mut next: F) -> io::Result<Pages<F>> {
        let page = next().map_err(io::Error::other)?;
        Ok(Pages { next, page })
    }
}

impl<F: FnMut() -> Result<Page, String>> Source for Pages<F> {
    /// A page that cannot be had now says why: it may be there again in a moment.
    fn refresh(&mut self) -> io::Result<()> {
        self.page = (self.next)().unwrap_or_else(|why| Page {
            json: format!("{{\"error\":{}}}", mbal_output::quoted(&why)),
            text: format!("{why}\n"),
        });
        Ok(())
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        frame.render_widget(Paragraph::new(Text::raw(self.page.text.as_str())), frame.area());
    }

    fn text(&self) -> String {
        self.page.text.clone()
    }

    fn json(&self) -> String {
        self.page.json.clone()
    }
}
