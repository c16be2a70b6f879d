package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/optim"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// Streams of the seed: what is random, and does not disturb the rest.
const (
	streamOrder uint64 = iota + 1
	streamSample
)

// training is one run.
type training struct {
	settings
	dev          *cpu.Device
	model        *nn.Transformer
	params       []optim.Param
	train, valid []byte
	from         string
	unigram      float64 // entropy of the validation text's byte frequencies
	out          io.Writer
	log          *os.File // metrics.jsonl
	steps        []point
	scale        float64 // of the loss, for float16
	goodSteps    int
}

// point is one line of metrics.jsonl.
type point struct {
	Step       int      `json:"step"`
	Loss       float64  `json:"loss"`
	Validation *float64 `json:"validation_loss,omitempty"`
	LR         float64  `json:"lr"`
	GradNorm   float64  `json:"grad_norm"`
	Tokens     int      `json:"tokens"`
	Seconds    float64  `json:"seconds"`
	TokensPerS float64  `json:"tokens_per_second"`
	Skipped    bool     `json:"skipped,omitempty"`
}

// prepare checks everything that can be checked before any work.
func prepare(s settings, out io.Writer) (*training, error) {
	c, err := s.check()
	if err != nil {
		return nil, err
	}
	place, err := tensor.ParseDevice(s.Device)
	if err != nil {
		return nil, wrong("-device is %q, want cpu", s.Device)
	}
	if place != tensor.CPU {
		return nil, wrong("-device is %q: this build has no such backend, want cpu", s.Device)
	}
	r := &training{settings: s, out: out, scale: 1}
	text, from, err := readText(s.Data)
	if err != nil {
		return nil, err
	}
	r.from = from
	if r.train, r.valid, err = split(text, s.Seq); err != nil {
		return nil, err
	}
	r.unigram = entropy(r.valid)
	if r.Out == "" {
		r.Out = filepath.Join("runs", "train_toy-"+s.Residual)
	}
	if err := os.MkdirAll(r.Out, 0o755); err != nil {
		return nil, wrong("-out: %v", err)
	}
	if r.model, err = nn.NewTransformer(c, s.Seed); err != nil {
		return nil, err
	}
	for _, p := range r.model.Parameters() {
		r.params = append(r.params, optim.Param{Value: p.Value, Decay: p.Decay})
	}
	if c.DType == tensor.Float16 {
		r.scale = 1 << 12
	}
	r.dev = cpu.New(cpu.Threads(s.Threads))
	return r, nil
}

// run runs the steps, then writes the run folder's pictures and a sample. If
// ctx is cancelled it ends the step at hand and does the same.
func (r *training) run(ctx context.Context) (err error) {
	defer r.dev.Close()
	if err := r.writeConfig(); err != nil {
		return err
	}
	if r.log, err = os.Create(filepath.Join(r.Out, "metrics.jsonl")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.log.Close()) }()
	sum, err := optim.NewAccumulator(r.dev, r.params)
	if err != nil {
		return err
	}
	opt, err := optim.NewAdamW(r.dev, r.params, optim.AdamWOptions{WeightDecay: r.Decay})
	if err != nil {
		return err
	}
	count := 0
	for _, p := range r.params {
		count += p.Value.Len()
	}
	fmt.Fprintf(r.out, "%s residual, %d layers, width %d, %d parameters, %s\n", r.Residual, r.Layers, r.Dim, count, r.DType)
	fmt.Fprintf(r.out, "%d bytes to learn from, %d held out: %s\n", len(r.train), len(r.valid), r.from)
	bar := newProgress(r.out, r.Steps)
	start, tokens := time.Now(), 0
	var last float64
	for step := range r.Steps {
		if ctx.Err() != nil {
			break
		}
		p := point{Step: step + 1, LR: optim.Cosine(step, r.Warmup, r.Steps, r.LR, r.LR/10)}
		if p.Loss, err = r.accumulate(sum, step); err != nil {
			return err
		}
		if p.GradNorm, err = sum.Norm(); err != nil {
			return err
		}
		if p.Skipped = r.overflowed(p.GradNorm); !p.Skipped {
			if r.Clip > 0 && p.GradNorm > r.Clip {
				if err := sum.Scale(r.Clip / p.GradNorm); err != nil {
					return err
				}
			}
			if err := opt.Step(sum, p.LR); err != nil {
				return err
			}
		}
		tokens += r.Accum * r.Batch * r.Seq
		if (step+1)%r.EvalEvery == 0 || step+1 == r.Steps {
			v, err := r.validate()
			if err != nil {
				return err
			}
			p.Validation, last = &v, v
		}
		p.Tokens, p.Seconds = tokens, time.Since(start).Seconds()
		p.TokensPerS = float64(tokens) / p.Seconds
		if err := r.record(p); err != nil {
			return err
		}
		bar.step(p, last)
	}
	bar.end()
	if ctx.Err() != nil {
		fmt.Fprintf(r.out, "stopped after %d of %d steps\n", len(r.steps), r.Steps)
	}
	return r.finish(last)
}

// overflowed handles float16's loss scale: halved when a gradient is not finite
// and the step is skipped, doubled after 200 good steps.
func (r *training) overflowed(norm float64) bool {
	if !math.IsNaN(norm) && !math.IsInf(norm, 0) {
		if r.goodSteps++; r.scale > 1 && r.goodSteps%200 == 0 {
			r.scale *= 2
		}
		return false
	}
	r.goodSteps = 0
	r.scale = max(r.scale/2, 1)
	return true
}

// accumulate sums the gradients of a step's batches and gives their mean loss.
func (r *training) accumulate(sum *optim.Accumulator, step int) (loss float64, err error) {
	if err := sum.Reset(); err != nil {
		return 0, err
	}
	scale := r.scale
	for i := range r.Accum {
		l, err := r.backward(sum, step*r.Accum+i, scale)
		if err != nil {
			return 0, err
		}
		loss += l / float64(r.Accum)
	}
	return loss, sum.Scale(1 / (scale * float64(r.Accum)))
}

// backward runs one batch forth and back.
func (r *training) backward(sum *optim.Accumulator, batch int, scale float64) (float64, error) {
	t := autograd.NewTape(context.Background(), r.dev)
	defer t.Release()
	order := random.Source{Seed: r.Seed, Stream: streamOrder}
	at := make([]int, r.Batch)
	for i := range at {
		at[i] = order.Intn(uint64(batch*r.Batch+i), len(r.train)-r.Seq)
	}
	ids, targets := r.windows(t, r.train, at)
	loss := r.model.Loss(t, ids, targets)
	seed := t.Full(loss.DType(), scale, loss.Shape()...)
	grads, err := t.BackwardFrom(loss, seed)
	if err != nil {
		return 0, err
	}
	l, err := loss.Item()
	if err != nil {
		return 0, err
	}
	return l, sum.Add(grads)
}

// windows are sequences of a text and their successors, (len(at),Seq) each.
func (r *training) windows(t *autograd.Tape, text []byte, at []int) (ids, targets *autograd.Var) {
	x := make([]int32, 0, len(at)*r.Seq)
	y := make([]int32, 0, len(at)*r.Seq)
	for _, a := range at {
		for i := range r.Seq {
			x = append(x, int32(text[a+i]))
			y = append(y, int32(text[a+i+1]))
		}
	}
	return constant(t, x, len(at), r.Seq), constant(t, y, len(at), r.Seq)
}

func constant(t *autograd.Tape, ids []int32, shape ...int) *autograd.Var {
	host, err := tensor.FromSlice(ids, shape...)
	if err != nil {
		return t.Fails(err)
	}
	return t.Const(t.Upload(host))
}

// validate is the mean loss over fixed sequences, evenly spaced over the held-out text.
func (r *training) validate() (float64, error) {
	n := min(32, (len(r.valid)-1)/r.Seq)
	var total float64
	for from := 0; from < n; from += r.Batch {
		var at []int
		for i := from; i < min(from+r.Batch, n); i++ {
			at = append(at, i*(len(r.valid)-1-r.Seq)/max(n-1, 1))
		}
		loss, err := r.evaluate(at)
		if err != nil {
			return 0, err
		}
		total += loss * float64(len(at))
	}
	return total / float64(n), nil
}

func (r *training) evaluate(at []int) (float64, error) {
	t := autograd.NewTape(context.Background(), r.dev)
	defer t.Release()
	ids, targets := r.windows(t, r.valid, at)
	return ops.CrossEntropy(r.model.Logits(t, ids), targets, ops.MeanOfCounted, ops.IgnoreIndex).Item()
}

// generate continues a prompt, one byte at a time, at temperature 0.8.
func (r *training) generate(prompt []byte, n int) ([]byte, error) {
	text := append([]byte(nil), prompt...)
	src := random.Source{Seed: r.Seed, Stream: streamSample}
	for i := range n {
		window := text[max(0, len(text)-r.Seq):]
		p, err := r.next(window)
		if err != nil {
			return nil, err
		}
		u, c := src.Float64(uint64(i)), 0
		for c < 255 && u >= p[c] {
			u -= p[c]
			c++
		}
		text = append(text, byte(c))
	}
	return text, nil
}

// next is the distribution of the byte after a text.
func (r *training) next(text []byte) ([]float64, error) {
	t := autograd.NewTape(context.Background(), r.dev)
	defer t.Release()
	ids := make([]int32, len(text))
	for i, c := range text {
		ids[i] = int32(c)
	}
	logits := ops.Select(ops.Select(r.model.Logits(t, constant(t, ids, 1, len(ids))), 1, -1), 0, 0)
	return ops.Softmax(ops.DivScalar(ops.Cast(logits, tensor.Float64), 0.8), 0).Float64s()
}

func (r *training) writeConfig() error {
	c := struct {
		settings
		From    string    `json:"text"`
		Train   int       `json:"train_bytes"`
		Valid   int       `json:"validation_bytes"`
		Unigram float64   `json:"unigram_entropy_nats"`
		Model   nn.Config `json:"model"`
	}{r.settings, r.from, len(r.train), len(r.valid), r.unigram, r.model.Config}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.Out, "config.json"), append(b, '\n'), 0o644)
}

func (r *training) record(p point) error {
	r.steps = append(r.steps, p)
	for _, f := range []*float64{&p.Loss, &p.GradNorm} { // JSON has no NaN
		if math.IsNaN(*f) || math.IsInf(*f, 0) {
			*f = -1
		}
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = r.log.Write(append(b, '\n'))
	return err
}

// finish says how it went and completes the run folder.
func (r *training) finish(last float64) error {
	if n := len(r.steps); n > 0 {
		first, end := r.steps[0], r.steps[n-1]
		if end.Validation == nil { // stopped on the way
			v, err := r.validate()
			if err != nil {
				return err
			}
			last = v
		}
		fmt.Fprintf(r.out, "training loss %.3f -> %.3f nats a byte, %.0f tokens/s, %s\n", first.Loss, end.Loss, end.TokensPerS, duration(time.Duration(end.Seconds*float64(time.Second))))
		fmt.Fprintf(r.out, "validation loss %.3f nats a byte (%.2f bits); byte frequencies alone give %.3f\n", last, last/math.Ln2, r.unigram)
	}
	if err := r.drawLoss(); err != nil {
		return err
	}
	if err := r.drawAlpha(); err != nil {
		return err
	}
	if r.Sample > 0 {
		text, err := r.generate([]byte("func "), r.Sample)
		if err != nil {
			return err
		}
		fmt.Fprintf(r.out, "a sample:\n%s\n", printable(text))
		if err := os.WriteFile(filepath.Join(r.Out, "sample.txt"), text, 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(r.out, "run folder: %s\n", r.Out)
	return nil
}

// progress shows the steps: a bar on a terminal, else a line now and then.
type progress struct {
	out   io.Writer
	bar   *progressbar.ProgressBar
	steps int
	lines time.Time
}

func newProgress(out io.Writer, steps int) *progress {
	p := &progress{out: out, steps: steps}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(steps, progressbar.OptionSetWriter(out), progressbar.OptionSetPredictTime(true),
			progressbar.OptionShowCount(), progressbar.OptionFullWidth(), progressbar.OptionSetElapsedTime(true))
	}
	return p
}

func (p *progress) step(at point, validation float64) {
	text := fmt.Sprintf("loss %.3f  %.0f tokens/s", at.Loss, at.TokensPerS)
	if validation > 0 {
		text += fmt.Sprintf("  validation %.3f", validation)
	}
	if p.bar != nil {
		p.bar.Describe(text)
		_ = p.bar.Add(1) // a bar that cannot be drawn stops no training
		return
	}
	if at.Step == 1 || at.Step == p.steps || at.Validation != nil || time.Since(p.lines) > 10*time.Second {
		p.lines = time.Now()
		left := time.Duration(at.Seconds / float64(at.Step) * float64(p.steps-at.Step) * float64(time.Second))
		fmt.Fprintf(p.out, "step %d/%d  %s  %s left\n", at.Step, p.steps, text, duration(left))
	}
}

func (p *progress) end() {
	if p.bar != nil {
		fmt.Fprintln(p.out)
	}
}
