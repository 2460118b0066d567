//! Lines over two axes.

use std::path::Path;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;

/// One line of a plot.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// The points as (x, y).
    pub points: Vec<(f64, f64)>,
    /// Whether the line is a reference for comparison, drawn thin and grey.
    pub is_reference: bool,
}

/// A plot with a title and labelled axes.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Title, above the plot.
    pub title: String,
    /// Label of the x axis.
    pub x: String,
    /// Label of the y axis.
    pub y: String,
    /// The lines.
    pub lines: Vec<Line>,
}

const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];

impl Plot {
    /// Draws into an SVG file. Errors name the file.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let area = SVGBackend::new(path, (960, 600)).into_drawing_area();
        self.draw(&area).and_then(|()| Ok(area.present()?)).map_err(|error| anyhow!("draw {}: {error}", path.display()))
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn std::error::Error>>
    where
        B::ErrorType: 'static,
    {
        area.fill(&WHITE)?;
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(1.0, f64::max);
        let x_end = most(&mut points().map(|point| point.0));
        let y_end = most(&mut points().map(|point| point.1)) * 1.05;
        let x_start = points().map(|point| point.0).fold(x_end, f64::min).min(x_end - 1e-9);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 24))
            .margin(20)
            .x_label_area_size(50)
            .y_label_area_size(70)
            .build_cartesian_2d(x_start..x_end, 0.0..y_end)?;
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .label_style(("sans-serif", 16))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (nth, line) in self.lines.iter().enumerate() {
            let style = if line.is_reference {
                RGBColor(150, 150, 150).stroke_width(1)
            } else {
                COLORS[nth % COLORS.len()].stroke_width(3)
            };
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), style))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
            if !line.is_reference {
                chart.draw_series(line.points.iter().map(|&point| Circle::new(point, 4, style.color.filled())))?;
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(200, 200, 200))
            .label_font(("sans-serif", 16))
            .draw()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_contains_its_labels_and_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        let line =
            |name: &str, is_reference| Line { name: name.into(), points: vec![(1.0, 2.0), (3.0, 9.0)], is_reference };
        let plot = Plot {
            title: "Hit ratio".into(),
            x: "cache".into(),
            y: "hits".into(),
            lines: vec![line("nr", false), line("ideal", true)],
        };
        plot.write(&path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for word in ["Hit ratio", "cache", "hits", "nr", "ideal", "<polyline"] {
            assert!(svg.contains(word), "{word}");
        }
        let error = plot.write(Path::new("/nonexistent/plot.svg")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/plot.svg"), "{error}");
    }
}
