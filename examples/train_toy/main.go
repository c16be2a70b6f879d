// Train_toy trains a small byte-level transformer on real text and shows that
// it learns: by default on the Go standard library's own source.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/tensor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() { // after the first signal the next one ends the program at once
		<-ctx.Done()
		stop()
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings are what the flags say.
type settings struct {
	Data      string  `json:"data"`
	Residual  string  `json:"residual"`
	BlockSize int     `json:"block_size"`
	Layers    int     `json:"layers"`
	Dim       int     `json:"dim"`
	Heads     int     `json:"heads"`
	Seq       int     `json:"seq"`
	Batch     int     `json:"batch"`
	Accum     int     `json:"accum"`
	Steps     int     `json:"steps"`
	LR        float64 `json:"lr"`
	Warmup    int     `json:"warmup"`
	Decay     float64 `json:"weight_decay"`
	Clip      float64 `json:"clip"`
	EvalEvery int     `json:"eval_every"`
	Sample    int     `json:"sample"`
	Seed      uint64  `json:"seed"`
	DType     string  `json:"dtype"`
	Device    string  `json:"device"`
	Threads   int     `json:"threads"`
	Out       string  `json:"out"`
}

// usageError is a mistake of the user: exit status 2.
type usageError struct{ error }

func wrong(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	s := settings{}
	f := flag.NewFlagSet("train_toy", flag.ContinueOnError)
	f.SetOutput(io.Discard) // one sentence for a mistake, the list of flags for -help
	f.StringVar(&s.Data, "data", "", "file or directory of text (default: the Go standard library's source)")
	f.StringVar(&s.Residual, "residual", "block", "prenorm, block or full")
	f.IntVar(&s.BlockSize, "block-size", 2, "sublayers of a block, for -residual block")
	f.IntVar(&s.Layers, "layers", 4, "transformer layers of two sublayers each")
	f.IntVar(&s.Dim, "dim", 128, "width")
	f.IntVar(&s.Heads, "heads", 4, "attention heads")
	f.IntVar(&s.Seq, "seq", 128, "bytes of a sequence")
	f.IntVar(&s.Batch, "batch", 8, "sequences of a batch")
	f.IntVar(&s.Accum, "accum", 1, "batches whose gradients make one step")
	f.IntVar(&s.Steps, "steps", 2000, "optimizer steps")
	f.Float64Var(&s.LR, "lr", 3e-3, "largest learning rate")
	f.IntVar(&s.Warmup, "warmup", 40, "steps of linear warm-up")
	f.Float64Var(&s.Decay, "weight-decay", 0.1, "AdamW's weight decay")
	f.Float64Var(&s.Clip, "clip", 1, "largest norm of the gradient; 0 for no limit")
	f.IntVar(&s.EvalEvery, "eval-every", 100, "steps between validations")
	f.IntVar(&s.Sample, "sample", 200, "bytes of text generated at the end")
	f.Uint64Var(&s.Seed, "seed", 1, "of weights, data order and sampling")
	f.StringVar(&s.DType, "dtype", "float32", "float32, float64, float16 or bfloat16")
	f.StringVar(&s.Device, "device", "cpu", "where to compute")
	f.IntVar(&s.Threads, "threads", 0, "threads (0: all)")
	f.StringVar(&s.Out, "out", "", "run folder (default: runs/train_toy-<residual>)")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(out, "Train_toy trains a small transformer on text. Flags:")
			f.SetOutput(out)
			f.PrintDefaults()
			return 0
		}
		fmt.Fprintln(errs, "train_toy:", err)
		return 2
	}
	err := func() error {
		if f.NArg() > 0 {
			return wrong("unexpected argument %q", f.Arg(0))
		}
		r, err := prepare(s, out)
		if err != nil {
			return err
		}
		return r.run(ctx)
	}()
	var u usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &u):
		fmt.Fprintln(errs, "train_toy:", err)
		return 2
	}
	fmt.Fprintln(errs, "train_toy:", err)
	return 1
}

// check refuses settings that make no sense, before any work.
func (s *settings) check() (nn.Config, error) {
	for _, n := range []struct {
		flag     string
		value    int
		at_least int
	}{{"layers", s.Layers, 1}, {"dim", s.Dim, 1}, {"heads", s.Heads, 1}, {"seq", s.Seq, 1}, {"batch", s.Batch, 1}, {"accum", s.Accum, 1},
		{"steps", s.Steps, 1}, {"warmup", s.Warmup, 0}, {"eval-every", s.EvalEvery, 1}, {"sample", s.Sample, 0}, {"threads", s.Threads, 0}} {
		if n.value < n.at_least {
			return nn.Config{}, wrong("-%s is %d, want at least %d", n.flag, n.value, n.at_least)
		}
	}
	if !(s.LR > 0 && s.LR < 10) {
		return nn.Config{}, wrong("-lr is %v, want a number between 0 and 10", s.LR)
	}
	if !(s.Decay >= 0 && s.Decay < 10) || !(s.Clip >= 0) {
		return nn.Config{}, wrong("-weight-decay and -clip must not be negative")
	}
	d, err := tensor.ParseDType(s.DType)
	if err != nil || !d.IsFloat() {
		return nn.Config{}, wrong("-dtype is %q, want float32, float64, float16 or bfloat16", s.DType)
	}
	residual, err := nn.ParseResidual(s.Residual)
	if err != nil {
		return nn.Config{}, wrong("-%w", err)
	}
	c := nn.Config{Vocab: 256, Layers: s.Layers, Dim: s.Dim, Heads: s.Heads, Residual: residual, BlockSize: s.BlockSize, DType: d}
	if err := c.Check(); err != nil {
		return c, usageError{err}
	}
	if need, have := s.memory(d), machineMemory(); have > 0 && need > have {
		return c, wrong("a step of these sizes takes about %.3g GiB, this machine has %.3g (a smaller -batch, -seq, -dim or -layers)", need/(1<<30), have/(1<<30))
	}
	return c, nil
}

// memory is about what a step takes, in bytes: the parameters in float32 with
// their gradients and two moments; for each token the logits and their
// gradient, some twenty rows of activations a layer, and a row of scores and of
// weights for each head.
func (s *settings) memory(d tensor.DType) float64 {
	layers, dim, heads, seq := float64(s.Layers), float64(s.Dim), float64(s.Heads), float64(s.Seq)
	return 16*(12*layers*dim*dim+256*dim) + float64(d.Size())*float64(s.Batch)*seq*(2*256+layers*(20*dim+2*heads*seq))
}

// machineMemory is the machine's memory in bytes, 0 where the system does not tell.
func machineMemory() float64 {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kib float64
	if _, err := fmt.Sscanf(string(info), "MemTotal: %g kB", &kib); err != nil {
		return 0
	}
	return kib * 1024
}

// duration is d in whole seconds.
func duration(d time.Duration) string { return d.Round(time.Second).String() }
