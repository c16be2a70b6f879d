package main

import (
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// draw draws the roofline: for each figure the arithmetic it does for a byte of
// memory it must move, and the rate it reaches, under what the machine allows
// (Williams, Waterman and Patterson, "Roofline", 2009).
func (b *bench) draw(name string) error {
	groups := map[string]plotter.XYs{}
	least, most := 0.25, 64.0
	low := math.Inf(1)
	for _, f := range b.all {
		if f.flops == 0 || f.bytes == 0 || f.Threads != b.threads || f.bytes < 1<<16 {
			continue
		}
		x, y := f.flops/f.bytes, f.flops/f.seconds/1e9
		group := strings.Join(strings.Split(f.Name, "/")[:2], " ")
		if strings.HasPrefix(group, "matmul bf16") || strings.HasPrefix(group, "matmul fp") {
			group = "matmul " + strings.Split(f.Name, "/")[1]
		}
		groups[group] = append(groups[group], plotter.XY{X: x, Y: y})
		least, most, low = min(least, x/1.5), max(most, x*1.5), min(low, y/2)
	}
	if len(groups) == 0 {
		return nil
	}
	p := plot.New()
	p.Title.Text = "Roofline, " + processor()
	p.X.Label.Text, p.Y.Label.Text = "operations for a byte that must be moved", "GFLOP/s"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.X.Min, p.X.Max = least, most
	p.Legend.Top, p.Legend.Left = false, false
	p.Add(plotter.NewGrid())
	for i, dtype := range []string{"fp32", "bf16"} {
		if b.peak[dtype] == 0 {
			continue
		}
		roof := func(x float64) float64 { return min(b.peak[dtype], x*b.read) / 1e9 }
		line, err := plotter.NewLine(plotter.XYs{{X: least, Y: roof(least)}, {X: b.peak[dtype] / b.read, Y: b.peak[dtype] / 1e9}, {X: max(most, b.peak[dtype]/b.read), Y: b.peak[dtype] / 1e9}})
		if err != nil {
			return err
		}
		line.Color, line.Width = color.Gray{Y: uint8(90 + 60*i)}, 1.5
		p.Add(line)
		p.Legend.Add("limit, "+dtype, line)
		p.Y.Max = max(p.Y.Max, 1.5*b.peak[dtype]/1e9)
		low = min(low, roof(least))
	}
	p.Y.Min = low
	colors := []color.Color{color.RGBA{200, 60, 40, 255}, color.RGBA{230, 150, 30, 255}, color.RGBA{50, 110, 190, 255}, color.RGBA{60, 150, 80, 255}, color.RGBA{130, 80, 170, 255}, color.RGBA{90, 90, 90, 255}}
	i := 0
	for _, f := range b.all { // the order of the table
		for group, points := range groups {
			if !strings.HasPrefix(strings.ReplaceAll(f.Name, "/", " "), group+" ") {
				continue
			}
			s, err := plotter.NewScatter(points)
			if err != nil {
				return err
			}
			s.Color, s.Radius, s.Shape = colors[i%len(colors)], 3, draw.CircleGlyph{}
			p.Add(s)
			p.Legend.Add(group, s)
			delete(groups, group)
			i++
			break
		}
	}
	return p.Save(18*vg.Centimeter, 12*vg.Centimeter, name)
}
