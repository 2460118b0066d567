//! Bars of systems side by side.

use std::path::Path;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;

/// One bar, with the range of its value.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// The height of the bar.
    pub value: f64,
    /// The lower end of the range.
    pub low: f64,
    /// The upper end of the range.
    pub high: f64,
}

/// A group of bars with its own scale.
#[derive(Clone, Debug)]
pub struct Group {
    /// Title, above the group.
    pub name: String,
    /// In the order of [`Bars::names`]; `None` leaves a gap.
    pub bars: Vec<Option<Bar>>,
}

/// Groups of bars beside each other, with a colour for each name.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Title, above all groups.
    pub title: String,
    /// Label of the y axes.
    pub y: String,
    /// The name of each colour, for the legend.
    pub names: Vec<String>,
    /// The groups.
    pub groups: Vec<Group>,
}

/// Colours of the bars: the colours of the lines, followed by more colours.
const BAR_COLORS: [RGBColor; 10] = [
    RGBColor(150, 150, 150),
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(240, 150, 80),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(225, 180, 205),
    RGBColor(230, 190, 40),
    RGBColor(90, 60, 140),
];

/// The approximate width of a letter in the legend, in pixels.
const LETTER_WIDTH: usize = 9;

impl Bars {
    /// Draws into an SVG file. Errors name the file.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let area = SVGBackend::new(path, (1280, 640)).into_drawing_area();
        self.draw(&area).and_then(|()| Ok(area.present()?)).map_err(|error| anyhow!("draw {}: {error}", path.display()))
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn std::error::Error>>
    where
        B::ErrorType: 'static,
    {
        area.fill(&WHITE)?;
        let area = area.titled(&self.title, ("sans-serif", 34))?;
        let (height, legend_height) = (area.dim_in_pixel().1, 70);
        let (upper, legend) = area.split_vertically(height.saturating_sub(legend_height));
        for (group, panel) in self.groups.iter().zip(upper.split_evenly((1, self.groups.len().max(1)))) {
            self.draw_group(group, &panel)?;
        }
        self.draw_legend(&legend)
    }

    fn draw_group<B: DrawingBackend>(
        &self,
        group: &Group,
        panel: &DrawingArea<B, Shift>,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        B::ErrorType: 'static,
    {
        let most = group.bars.iter().flatten().map(|bar| bar.high).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(panel)
            .caption(&group.name, ("sans-serif", 28))
            .margin(10)
            .y_label_area_size(80)
            .build_cartesian_2d(0.0..self.names.len() as f64, 0.0..most * 1.1)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc(&self.y)
            .label_style(("sans-serif", 18))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (nth, bar) in group.bars.iter().enumerate() {
            let Some(bar) = bar else { continue };
            let (left, middle) = (nth as f64, nth as f64 + 0.5);
            let color = BAR_COLORS[nth % BAR_COLORS.len()];
            chart.draw_series([Rectangle::new([(left + 0.1, 0.0), (left + 0.9, bar.value)], color.filled())])?;
            let thin = BLACK.stroke_width(1);
            chart.draw_series([PathElement::new([(middle, bar.low), (middle, bar.high)], thin)])?;
            let place = plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Center,
                plotters::style::text_anchor::VPos::Bottom,
            );
            let style = ("sans-serif", 16).into_text_style(panel).pos(place);
            let above = bar.high + most * 0.01;
            chart.draw_series([Text::new(format!("{:.0}", bar.value), (middle, above), style)])?;
        }
        Ok(())
    }

    fn draw_legend<B: DrawingBackend>(&self, legend: &DrawingArea<B, Shift>) -> Result<(), Box<dyn std::error::Error>>
    where
        B::ErrorType: 'static,
    {
        let width = legend.dim_in_pixel().0 as i32;
        let (mut x, mut y) = (30, 10);
        for (nth, name) in self.names.iter().enumerate() {
            let needs = 40 + (name.chars().count() * LETTER_WIDTH) as i32;
            if x + needs > width {
                (x, y) = (30, y + 26);
            }
            legend.draw(&Rectangle::new([(x, y), (x + 16, y + 16)], BAR_COLORS[nth % BAR_COLORS.len()].filled()))?;
            legend.draw(&Text::new(name.clone(), (x + 22, y), ("sans-serif", 21)))?;
            x += needs;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_chart_contains_its_names_and_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bars.svg");
        let bar = |value| Some(Bar { value, low: value * 0.9, high: value * 1.2 });
        let bars = Bars {
            title: "Files a second".into(),
            y: "files/s".into(),
            names: vec!["one".into(), "other".into()],
            groups: vec![
                Group { name: "cold".into(), bars: vec![bar(1234.0), None] },
                Group { name: "hot".into(), bars: vec![bar(77_000.0), bar(4321.0)] },
            ],
        };
        bars.write(&path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for word in ["Files a second", "cold", "hot", "one", "other", "1234", "77000", "4321"] {
            assert!(svg.contains(word), "{word}");
        }
        let error = bars.write(Path::new("/nonexistent/bars.svg")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/bars.svg"), "{error}");
    }
}
