package main

import (
	"context"
	"fmt"
	"image/color"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/palette/moreland"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/nn"
)

// drawLoss draws loss.png: training and validation loss, and the baseline.
func (r *training) drawLoss() error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s residual, %d layers, width %d", r.Residual, r.Layers, r.Dim)
	p.X.Label.Text, p.Y.Label.Text = "step", "loss, nats a byte"
	p.Legend.Top = true
	p.Y.Min = 0
	var train, valid plotter.XYs
	for _, s := range r.steps {
		if s.Loss == s.Loss {
			train = append(train, plotter.XY{X: float64(s.Step), Y: s.Loss})
		}
		if s.Validation != nil && *s.Validation == *s.Validation {
			valid = append(valid, plotter.XY{X: float64(s.Step), Y: *s.Validation})
		}
	}
	base := plotter.XYs{{X: 0, Y: r.unigram}, {X: float64(max(len(r.steps), 1)), Y: r.unigram}}
	for _, l := range []struct {
		name  string
		xy    plotter.XYs
		color color.Color
		width vg.Length
	}{
		{"training", train, color.RGBA{R: 110, G: 160, B: 220, A: 255}, 1},
		{"validation", valid, color.RGBA{R: 200, G: 60, B: 40, A: 255}, 2},
		{"byte frequencies", base, color.Gray{Y: 130}, 1},
	} {
		if len(l.xy) == 0 {
			continue
		}
		line, err := plotter.NewLine(l.xy)
		if err != nil {
			return err
		}
		line.Color, line.Width = l.color, l.width
		p.Add(line)
		p.Legend.Add(l.name, line)
	}
	return p.Save(16*vg.Centimeter, 10*vg.Centimeter, filepath.Join(r.Out, "loss.png"))
}

// alphas are the mean weights over a batch of held-out text: a row for each
// read, a column for each source; NaN where a read has no such source.
type alphas [][]float64

func (a alphas) Dims() (c, r int) {
	for _, row := range a {
		c = max(c, len(row))
	}
	return c, len(a)
}
func (a alphas) X(c int) float64    { return float64(c) }
func (a alphas) Y(r int) float64    { return float64(r) }
func (a alphas) Z(c, r int) float64 { return a.at(len(a)-1-r, c) }

func (a alphas) at(read, source int) float64 {
	if source < len(a[read]) {
		return a[read][source]
	}
	return -1 // below the palette: blank
}

// shades is a list of colors as a palette.
type shades []color.Color

func (s shades) Colors() []color.Color { return s }

// drawAlpha draws alpha.png, a heat map of sublayer by source. A plain residual
// has weights of 1 throughout.
func (r *training) drawAlpha() error {
	rows, err := r.meanAlphas()
	if err != nil {
		return err
	}
	width, _ := rows.Dims()
	colors := moreland.Kindlmann()
	colors.SetMin(0)
	colors.SetMax(1)
	// The palette ends in white, which here means that there is no such source.
	heat := plotter.NewHeatMap(rows, shades(colors.Palette(256).Colors()[40:216]))
	heat.Min, heat.Max = 0, 1
	heat.Underflow = color.White
	p := plot.New()
	p.Title.Text = "weight of each source, " + r.Residual + " residual"
	p.X.Label.Text, p.Y.Label.Text = "source (0: embedding; the last of a row may be the partial block)", "sublayer"
	p.Add(heat)
	labels := plotter.XYLabels{}
	for i, row := range rows {
		if width > 16 {
			break // no room for numbers
		}
		for j, a := range row {
			labels.XYs = append(labels.XYs, plotter.XY{X: float64(j), Y: float64(len(rows) - 1 - i)})
			labels.Labels = append(labels.Labels, fmt.Sprintf("%.2f", a))
		}
	}
	text, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range text.TextStyle {
		text.TextStyle[i].Color = color.White
		if labels.Labels[i] > "0.75" {
			text.TextStyle[i].Color = color.Black
		}
		text.TextStyle[i].XAlign, text.TextStyle[i].YAlign = draw.XCenter, draw.YCenter
	}
	p.Add(text)
	var xs, ys []plot.Tick
	for i := range width {
		xs = append(xs, plot.Tick{Value: float64(i), Label: fmt.Sprint(i)})
	}
	for i := range rows {
		name := []string{"attention", "mlp"}[i%2] + fmt.Sprintf(" %d", i/2)
		if i == len(rows)-1 {
			name = "head"
		}
		ys = append(ys, plot.Tick{Value: float64(len(rows) - 1 - i), Label: name})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.ConstantTicks(xs), plot.ConstantTicks(ys)
	return p.Save(16*vg.Centimeter, 12*vg.Centimeter, filepath.Join(r.Out, "alpha.png"))
}

func (r *training) meanAlphas() (alphas, error) {
	reads := 2*r.Layers + 1
	rows := make(alphas, reads)
	if nn.Residual(r.Residual) == nn.PreNorm {
		for i := range rows {
			rows[i] = []float64{1}
		}
		return rows, nil
	}
	t := autograd.NewTape(context.Background(), r.dev)
	defer t.Release()
	ids, _ := r.windows(t, r.valid, []int{0})
	vars := r.model.Weights(t, ids)
	if err := t.Err(); err != nil {
		return nil, err
	}
	for i, v := range vars {
		x, err := v.Float64s()
		if err != nil {
			return nil, err
		}
		l := v.Shape()[2]
		rows[i] = make([]float64, l)
		for j, a := range x {
			rows[i][j%l] += a * float64(l) / float64(len(x))
		}
	}
	return rows, nil
}
