package main

import (
	"context"
	"testing"

	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/tensor"
)

// A step of the small GPT: forward, backward, clipping and AdamW.
func BenchmarkTrainStep(b *testing.B) {
	for _, d := range dtypes {
		if d.dtype == tensor.Float16 || d.dtype == tensor.Float64 {
			continue // the gradients of float16 would need a scaled loss; float64 is not for training
		}
		b.Run(d.name, func(b *testing.B) {
			dev := cpu.New(cpu.FastBFloat16())
			defer dev.Close()
			m, err := newGPT(d.dtype)
			if err != nil {
				b.Fatal(err)
			}
			tr, err := newTrainer(dev, m.params, gptVocab, gptBatch, gptContext, m.loss)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := tr.step(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(gptBatch*gptContext*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
