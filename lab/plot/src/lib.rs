//! Line plots as SVG, alone or small and side by side, with one legend: results to be read beside their CSV.
//!
//! Called by `mbal-lab` and by examples that measure. Takes names and numbers, returns text; never writes a file, and never works out a figure.
#![forbid(unsafe_code)]

mod axis;

use std::fmt::Write;

use axis::{Axis, label};

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
/// Width and height of a panel that is alone, and of one among others; a long title makes it wider.
const ALONE: (f64, f64) = (560.0, 330.0);
const AMONG_OTHERS: (f64, f64) = (300.0, 230.0);
const TOP: f64 = 58.0;
const BOTTOM: f64 = 46.0;
/// Between a panel's lower edge and the next one's title.
const GAP: f64 = 24.0;
/// Beside the tick labels: the axis' name, turned, and some air.
const AXIS_NAME: f64 = 28.0;
const SWATCH: f64 = 24.0;
const LEGEND_HEIGHT: f64 = 18.0;
const TITLE_SIZE: f64 = 15.0;
const TEXT_SIZE: f64 = 11.0;
const COLORS: [&str; 12] = [
    "#d62728", "#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#e377c2",
    "#7f7f7f", "#111111", "#bcbd22", "#00008b",
];
/// Where there are more lines than colours.
const DASHES: [&str; 3] = ["", "6 3", "2 2"];

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
    /// Left of a panel: tick labels and the axis' name.
    left: f64,
    panel: (f64, f64),
    /// Of the panels.
    body: f64,
    /// Of a column of the legend, and how many there are.
    legend_width: f64,
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

    fn columns(&self) -> usize {
        COLUMNS.min(self.panels.len()).max(1)
    }

    fn size(&self) -> Size {
        let columns = self.columns();
        let rows = self.panels.len().div_ceil(columns);
        let (least, height) = if self.panels.len() == 1 { ALONE } else { AMONG_OTHERS };
        let ys = self.panels.iter().map(|panel| self.ys(panel, 0.0, height).widest_label());
        let left = AXIS_NAME + ys.fold(24.0, f64::max);
        let titles = self.panels.iter().map(|panel| text_width(&panel.title, TEXT_SIZE) - left);
        let panel = (titles.fold(least, f64::max), height);
        let names = self.names();
        let legend_width = names.iter().map(|name| SWATCH + text_width(name, TEXT_SIZE) + 16.0);
        let legend_width = legend_width.fold(0.0, f64::max);
        let width = (columns as f64 * (panel.0 + left) + 20.0)
            .max(left + legend_width)
            .max(left + text_width(&self.title, TITLE_SIZE));
        let in_row = (((width - left) / legend_width) as usize).max(1);
        let body = rows as f64 * (height + BOTTOM + GAP);
        let legend = names.len().div_ceil(in_row) as f64 * LEGEND_HEIGHT;
        Size { width, height: TOP + body + legend + 8.0, left, panel, body, legend_width, in_row }
    }

    pub fn svg(&self) -> String {
        let size = self.size();
        let Size { width, height, left, panel: (panel_width, panel_height), .. } = size;
        let mut svg = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0}' height='{height:.0}' \
             font-family='sans-serif' font-size='{TEXT_SIZE}'>\n\
             <rect width='100%' height='100%' fill='white'/>\n\
             <text x='{left:.1}' y='22' font-size='{TITLE_SIZE}'>{}</text>\n",
            escaped(&self.title)
        );
        let columns = self.columns();
        for (index, panel) in self.panels.iter().enumerate() {
            let x = left + (index % columns) as f64 * (panel_width + left);
            let y = TOP + (index / columns) as f64 * (panel_height + BOTTOM + GAP);
            self.panel(&mut svg, panel, (x, y), &size);
        }
        for (index, name) in self.legend().into_iter().enumerate() {
            let (x, y) = size.legend_place(index);
            line(&mut svg, (x, y), (x + 18.0, y), &stroke(index, 3.0));
            text(&mut svg, x + SWATCH, y + 4.0, "start", name);
        }
        svg + "</svg>\n"
    }

    /// In the order of their colours.
    fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for line in self.panels.iter().flat_map(|panel| &panel.lines) {
            if !names.contains(&line.name.as_str()) {
                names.push(line.name.as_str());
            }
        }
        names
    }

    /// One name tells nothing apart.
    fn legend(&self) -> Vec<&str> {
        Some(self.names()).filter(|names| names.len() > 1).unwrap_or_default()
    }

    fn ys(&self, panel: &Panel, top: f64, bottom: f64) -> Axis {
        let ys = panel.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        Axis::over(ys, self.log_y, bottom, top + 8.0)
    }

    fn panel(&self, svg: &mut String, panel: &Panel, (left, top): (f64, f64), size: &Size) {
        let (width, height) = size.panel;
        let (right, bottom) = (left + width, top + height);
        let xs = panel.lines.iter().flat_map(|line| &line.points).map(|point| point.0);
        let xs = Axis::over(xs, self.log_x, left, right - 16.0);
        let ys = self.ys(panel, top, bottom);
        text(svg, left, top - 6.0, "start", &panel.title);
        for at in ys.ticks() {
            let y = ys.place(at);
            line(svg, (left, y), (right, y), "stroke='#ddd'");
            text(svg, left - 4.0, y + 4.0, "end", &label(at));
        }
        for at in xs.ticks() {
            let x = xs.place(at);
            line(svg, (x, top), (x, bottom), "stroke='#eee'");
            text(svg, x, bottom + 14.0, "middle", &label(at));
        }
        text(svg, (left + right) / 2.0, bottom + 30.0, "middle", &axis_name(self.x, self.log_x));
        let (x, y) = (left - size.left + 14.0, (top + bottom) / 2.0);
        put(
            svg,
            format!(
                "<text transform='translate({x:.1} {y:.1}) rotate(-90)' text-anchor='middle'>{}</text>",
                escaped(&axis_name(self.y, self.log_y))
            ),
        );
        let names = self.names();
        for (place, drawn) in panel.lines.iter().enumerate() {
            let index = names.iter().position(|name| *name == drawn.name).expect("collected");
            let shown = drawn.points.iter().filter(|(x, y)| xs.shows(*x) && ys.shows(*y));
            let places: Vec<(f64, f64)> = shown.map(|&(x, y)| (xs.place(x), ys.place(y))).collect();
            // Of few lines the lower ones are wider: of two that are equal both can be seen.
            let above = if panel.lines.len() > 3 { 0 } else { panel.lines.len() - 1 - place };
            let stroke = stroke(index, 1.6 + 1.2 * above as f64);
            // One point makes no line.
            if let [(x, y)] = places[..] {
                let radius = 3.0 + 1.2 * above as f64;
                let mark = format!(
                    "<circle cx='{x:.1}' cy='{y:.1}' r='{radius:.1}' fill='none' {stroke}/>"
                );
                put(svg, mark);
                continue;
            }
            let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            put(svg, format!("<polyline points='{}' fill='none' {stroke}/>", path.join(" ")));
        }
    }
}

impl Size {
    /// Left end of a name's swatch, and its height.
    fn legend_place(&self, index: usize) -> (f64, f64) {
        let (column, row) = (index % self.in_row, index / self.in_row);
        let x = self.left + column as f64 * self.legend_width;
        (x, TOP + self.body + row as f64 * LEGEND_HEIGHT)
    }
}

/// A logarithmic axis says so.
fn axis_name(name: &str, log: bool) -> String {
    if log { format!("{name}, log scale") } else { name.to_owned() }
}

/// How a line is told apart: by its colour, then by its dashes.
fn stroke(index: usize, width: f64) -> String {
    let color = COLORS[index % COLORS.len()];
    let dashes = DASHES[index / COLORS.len() % DASHES.len()];
    let dashes = match dashes {
        "" => String::new(),
        dashes => format!(" stroke-dasharray='{dashes}'"),
    };
    format!("stroke='{color}' stroke-width='{width:.1}'{dashes}")
}

/// At most so wide in the fonts that stand for sans-serif: DejaVu Sans is the widest of them.
fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.62
}

fn put(svg: &mut String, element: String) {
    writeln!(svg, "{element}").expect("a string takes everything");
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), stroke: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    put(svg, format!("<line x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}' {stroke}/>"));
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = escaped(words);
    put(svg, format!("<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{words}</text>"));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, f64)]) -> Line {
        Line { name: name.into(), points: points.into() }
    }

    fn plot(panels: Vec<Panel>) -> Plot {
        Plot { title: "t".into(), x: "x", y: "y", log_x: false, log_y: false, panels }
    }

    fn panel(title: &str, lines: Vec<Line>) -> Panel {
        Panel { title: title.into(), lines }
    }

    #[test]
    fn lines_of_one_name_have_one_colour_and_the_largest_value_stays_in_the_frame() {
        let first = panel("one", vec![line("a<b", &[(0.0, 0.0), (10.0, 5.0)])]);
        let second = panel("two", vec![line("other", &[(0.0, 1.0)]), line("a<b", &[(0.0, 1.0)])]);
        let svg = plot(vec![first, second]).svg();
        assert!(
            svg.contains("points='52.0,288.0 336.0,66.0' fill='none' stroke='#d62728'"),
            "{svg}"
        );
        assert_eq!(svg.matches("fill='none' stroke='#d62728'").count(), 2);
        assert_eq!(svg.matches("a&lt;b").count(), 1);
    }

    #[test]
    fn one_point_is_a_mark_and_a_logarithmic_axis_says_so() {
        let lines = || vec![line("one", &[(1.0, 1.0)]), line("two", &[(1.0, 2.0), (2.0, 3.0)])];
        let svg = Plot::alone("t".into(), "x", "y", (true, false), lines()).svg();
        assert_eq!((svg.matches("<circle ").count(), svg.matches("<polyline ").count()), (1, 1));
        assert!(
            svg.contains("<circle cx='52.0' cy='280.7' r='4.2' fill='none' stroke='#d62728'"),
            "{svg}"
        );
        assert!(svg.contains(">x, log scale</text>") && svg.contains(">y</text>"), "{svg}");
        let svg = Plot::alone("t".into(), "x", "y", (false, true), lines()).svg();
        assert!(svg.contains(">x</text>") && svg.contains(">y, log scale</text>"), "{svg}");
        // A point that cannot be shown leaves another one alone.
        let lines = vec![line("a", &[(0.0, 1.0), (5.0, 1.0)])];
        let svg = Plot::alone("t".into(), "x", "y", (true, false), lines).svg();
        assert_eq!((svg.matches("<circle ").count(), svg.matches("<polyline ").count()), (1, 0));
    }

    #[test]
    fn a_panel_that_is_alone_has_the_room_of_several() {
        let lines = vec![line("a", &[(1.0, 1.0), (100.0, 10.0)])];
        let svg = Plot::alone("t".into(), "x", "y", (true, true), lines).svg();
        assert!(svg.contains("points='52.0,388.0 596.0,66.0'"), "{svg}");
    }

    /// Names of two to ninety characters, up to forty of them.
    #[test]
    fn no_two_names_of_a_legend_overlap_and_none_is_clipped() {
        for (count, longest) in [(2, 90), (3, 30), (12, 56), (40, 7)] {
            let name = |index: usize| format!("{index:02}{}", "m".repeat(index * 31 % longest));
            let lines = (0..count).map(|index| line(&name(index), &[(0.0, 1.0)])).collect();
            for panels in [vec![panel("", lines)], vec![]] {
                let plot = plot(panels);
                let size = plot.size();
                let names = plot.legend();
                let boxes: Vec<_> = (0..names.len())
                    .map(|index| {
                        let (x, y) = size.legend_place(index);
                        (x, x + SWATCH + text_width(names[index], TEXT_SIZE), y)
                    })
                    .collect();
                for (index, (left, right, y)) in boxes.iter().enumerate() {
                    assert!(*right <= size.width && *y + 4.0 <= size.height, "{index} is clipped");
                    let apart = |(a, b, c): &(f64, f64, f64)| {
                        b <= left || right <= a || (y - c).abs() >= LEGEND_HEIGHT
                    };
                    assert!(boxes[..index].iter().all(apart), "{index} of {count} overlaps");
                }
            }
        }
    }

    #[test]
    fn one_name_needs_no_legend() {
        let svg = plot(vec![panel("p", vec![line("alone", &[(0.0, 1.0)])])]).svg();
        assert!(!svg.contains("alone"), "{svg}");
    }

    #[test]
    fn no_two_of_36_lines_look_alike() {
        let mut strokes: Vec<_> = (0..36).map(|index| stroke(index, 1.0)).collect();
        strokes.sort_unstable();
        strokes.dedup();
        assert_eq!(strokes.len(), 36);
    }

    #[test]
    fn a_panels_title_ends_before_the_next_panel_begins() {
        let long = "a title of sixty letters that has more than a panel's room..";
        let panels = ["one", long, "three"].map(|title| panel(title, vec![]));
        let size = plot(panels.into()).size();
        assert!(text_width(long, TEXT_SIZE) <= size.panel.0 + size.left);
    }

    #[test]
    fn wide_labels_move_the_panel_not_the_axis_name() {
        let size = plot(vec![panel("", vec![line("a", &[(0.0, 0.028)])])]).size();
        assert!(size.left >= AXIS_NAME + text_width("0.005", TEXT_SIZE), "{}", size.left);
    }
}
