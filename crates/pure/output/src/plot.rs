//! Line plots as SVG, alone or small and side by side, with one legend: results to be read beside their CSV.

use std::fmt::Write;

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

pub struct Panel {
    pub title: String,
    pub lines: Vec<Line>,
}

pub struct Plot {
    pub title: String,
    pub x: &'static str,
    pub y: &'static str,
    pub log_x: bool,
    pub log_y: bool,
    /// Lines of one name have one colour in all of them.
    pub panels: Vec<Panel>,
}

const COLUMNS: usize = 3;
/// Width and height of a panel that is alone, and of one among others.
const ALONE: (f64, f64) = (560.0, 330.0);
const AMONG_OTHERS: (f64, f64) = (300.0, 230.0);
const LEFT: f64 = 52.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 46.0;
const LEGEND_WIDTH: f64 = 180.0;
const LEGEND_HEIGHT: f64 = 18.0;
const COLORS: [&str; 10] = [
    "#d62728", "#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#e377c2",
    "#7f7f7f", "#111111",
];

/// Plots one below the other, in one picture.
pub fn stacked(plots: &[Plot]) -> String {
    let sizes: Vec<Size> = plots.iter().map(Plot::size).collect();
    let width = sizes.iter().map(|size| size.width).fold(0.0, f64::max);
    let height: f64 = sizes.iter().map(|size| size.height).sum();
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'>\n\
         <rect width='100%' height='100%' fill='white'/>\n"
    );
    let mut top = 0.0;
    for (plot, size) in plots.iter().zip(sizes) {
        put(&mut svg, format!("<g transform='translate(0 {top})'>{}</g>", plot.svg()));
        top += size.height;
    }
    svg + "</svg>\n"
}

struct Size {
    width: f64,
    height: f64,
    /// Of the panels.
    body: f64,
    /// Names in a row of the legend.
    in_row: usize,
}

impl Plot {
    /// A plot of one panel, which needs no title of its own.
    pub fn alone(
        title: String,
        x: &'static str,
        y: &'static str,
        (log_x, log_y): (bool, bool),
        lines: Vec<Line>,
    ) -> Plot {
        Plot { title, x, y, log_x, log_y, panels: vec![Panel { title: String::new(), lines }] }
    }

    /// Width and height of a panel.
    fn panel_size(&self) -> (f64, f64) {
        if self.panels.len() == 1 { ALONE } else { AMONG_OTHERS }
    }

    fn size(&self) -> Size {
        let columns = COLUMNS.min(self.panels.len()).max(1);
        let rows = self.panels.len().div_ceil(columns);
        let (panel_width, panel_height) = self.panel_size();
        let width = (columns as f64 * (panel_width + LEFT) + 20.0).max(2.0 * LEGEND_WIDTH + LEFT);
        let in_row = ((width - LEFT) / LEGEND_WIDTH) as usize;
        let body = rows as f64 * (panel_height + BOTTOM + 24.0);
        let legend = self.names().len().div_ceil(in_row) as f64 * LEGEND_HEIGHT;
        Size { width, height: TOP + body + legend + 8.0, body, in_row }
    }

    pub fn svg(&self) -> String {
        let names = self.names();
        let columns = COLUMNS.min(self.panels.len()).max(1);
        let Size { width, height, body, in_row } = self.size();
        let mut svg = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' \
             font-family='sans-serif' font-size='11'>\n\
             <rect width='100%' height='100%' fill='white'/>\n\
             <text x='{LEFT}' y='22' font-size='15'>{}</text>\n",
            escaped(&self.title)
        );
        let (panel_width, panel_height) = self.panel_size();
        for (index, panel) in self.panels.iter().enumerate() {
            let left = LEFT + (index % columns) as f64 * (panel_width + LEFT);
            let top = TOP + (index / columns) as f64 * (panel_height + BOTTOM + 24.0);
            self.panel(&mut svg, panel, &names, left, top);
        }
        for (index, name) in names.iter().enumerate() {
            let x = LEFT + (index % in_row) as f64 * LEGEND_WIDTH;
            let y = TOP + body + (index / in_row) as f64 * LEGEND_HEIGHT;
            line(&mut svg, (x, y), (x + 18.0, y), color(index), 3.0);
            text(&mut svg, x + 24.0, y + 4.0, "start", name);
        }
        svg + "</svg>\n"
    }

    fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for line in self.panels.iter().flat_map(|panel| &panel.lines) {
            if !names.contains(&line.name.as_str()) {
                names.push(line.name.as_str());
            }
        }
        names
    }

    fn panel(&self, svg: &mut String, panel: &Panel, names: &[&str], left: f64, top: f64) {
        let (width, height) = self.panel_size();
        let (right, bottom) = (left + width, top + height);
        let points = || panel.lines.iter().flat_map(|line| line.points.iter().copied());
        let xs = Axis::over(points().map(|point| point.0), self.log_x, left, right - 16.0);
        let ys = Axis::over(points().map(|point| point.1), self.log_y, bottom, top + 8.0);
        text(svg, left, top - 6.0, "start", &panel.title);
        for at in ys.ticks() {
            let y = ys.place(at);
            line(svg, (left, y), (right, y), "#ddd", 1.0);
            text(svg, left - 4.0, y + 4.0, "end", &label(at));
        }
        for at in xs.ticks() {
            let x = xs.place(at);
            line(svg, (x, top), (x, bottom), "#eee", 1.0);
            text(svg, x, bottom + 14.0, "middle", &label(at));
        }
        text(svg, (left + right) / 2.0, bottom + 30.0, "middle", self.x);
        let (x, y) = (left - 38.0, (top + bottom) / 2.0);
        put(
            svg,
            format!(
                "<text transform='translate({x:.1} {y:.1}) rotate(-90)' text-anchor='middle'>{}</text>",
                escaped(self.y)
            ),
        );
        for drawn in &panel.lines {
            let index = names.iter().position(|name| *name == drawn.name).expect("collected");
            let shown = drawn.points.iter().filter(|(x, y)| xs.shows(*x) && ys.shows(*y));
            let path: Vec<String> =
                shown.map(|&(x, y)| format!("{:.1},{:.1}", xs.place(x), ys.place(y))).collect();
            put(
                svg,
                format!(
                    "<polyline points='{}' fill='none' stroke='{}' stroke-width='1.6'/>",
                    path.join(" "),
                    color(index)
                ),
            );
        }
    }
}

fn color(index: usize) -> &'static str {
    COLORS[index % COLORS.len()]
}

fn put(svg: &mut String, element: String) {
    writeln!(svg, "{element}").expect("a string takes everything");
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), color: &str, width: f64) {
    let ((x1, y1), (x2, y2)) = (from, to);
    put(
        svg,
        format!(
            "<line x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}' stroke='{color}' \
             stroke-width='{width}'/>"
        ),
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = escaped(words);
    put(svg, format!("<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{words}</text>"));
}

struct Axis {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    /// Linear ones begin at 0, logarithmic ones at the least value.
    fn over(values: impl Iterator<Item = f64>, log: bool, from: f64, to: f64) -> Axis {
        let (mut low, mut high) = (if log { f64::INFINITY } else { 0.0 }, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite() && (!log || *value > 0.0)) {
            low = low.min(value);
            high = high.max(value);
        }
        if !low.is_finite() {
            low = 1.0;
        }
        Axis { low, high: if high > low { high } else { low + 1.0 }, log, from, to }
    }

    fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    fn place(&self, value: f64) -> f64 {
        let share = match self.log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
            let steps: &[f64] = if decades.clone().count() > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let all = decades.flat_map(|power| steps.iter().map(move |s| s * 10f64.powi(power)));
            return all.filter(|at| (self.low..=self.high).contains(at)).collect();
        }
        let rough = (self.high - self.low) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| *step >= rough).expect("ten times is enough");
        let first = (self.low / step).ceil() as i64;
        (first..).map(|index| index as f64 * step).take_while(|at| *at <= self.high).collect()
    }
}

fn label(value: f64) -> String {
    match value.abs() {
        big if big >= 1e6 => format!("{}M", value / 1e6),
        big if big >= 1e4 => format!("{}k", value / 1e3),
        _ => format!("{}", (value * 1e4).round() / 1e4),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_name_have_one_colour_and_the_largest_value_stays_in_the_frame() {
        let line = |name: &str, points| Line { name: name.into(), points };
        let panel = |title: &str, lines| Panel { title: title.into(), lines };
        let first = panel("one", vec![line("a<b", vec![(0.0, 0.0), (10.0, 5.0)])]);
        let second =
            panel("two", vec![line("other", vec![(0.0, 1.0)]), line("a<b", vec![(0.0, 1.0)])]);
        let plot = Plot {
            title: "t".into(),
            x: "x",
            y: "y",
            log_x: false,
            log_y: false,
            panels: vec![first, second],
        };
        let svg = plot.svg();
        assert!(
            svg.contains("points='52.0,288.0 336.0,66.0' fill='none' stroke='#d62728'"),
            "{svg}"
        );
        assert_eq!(svg.matches("fill='none' stroke='#d62728'").count(), 2);
        assert_eq!(svg.matches("a&lt;b").count(), 1);
    }

    #[test]
    fn a_panel_that_is_alone_has_the_room_of_several() {
        let line = Line { name: "a".into(), points: vec![(1.0, 1.0), (100.0, 10.0)] };
        let svg = Plot::alone("t".into(), "x", "y", (true, true), vec![line]).svg();
        assert!(svg.contains("points='52.0,388.0 596.0,66.0'"), "{svg}");
    }
}
