// Bench measures what the engine makes of the machine it runs on: the fused
// operator, the matrix product and whole training steps, each beside a limit
// that is measured in the same run: memory bandwidth or peak arithmetic.
//
//	go run ./bench                                   # the table, and bench.png
//	go run ./bench -only 'blockattnres/.*/bf16'      # some of the figures
//	go run ./bench -json figures.json                # one JSON object a line
//	python bench/peers.py peers.json && go run ./bench -peers peers.json
//
// A figure is the median of at least -repeat runs. The first column of the
// table is its name, then its value, its limit, and how near it comes: 100 % is
// a kernel that does nothing but move its bytes or feed its multipliers. With
// -peers, the ratio to the peer's figure follows, above 1 where Lamina is faster.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"time"

	"github.com/lamina-go/lamina/device/cpu"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.As(err, new(usageError)):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// usageError is a wrong flag.
type usageError struct{ error }

// figure is one result.
type figure struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Limit   float64 `json:"limit"` // in the same unit: what the machine or the design allows
	Threads int     `json:"threads"`
	Peer    string  `json:"peer,omitempty"` // who, in a file of peers

	flops, bytes float64 // of one run, for the picture; 0 where it has no place there
	seconds      float64
}

// smaller reports whether a smaller value is a better one.
func (f figure) smaller() bool {
	return f.Unit == "ms" || f.Unit == "ratio" || f.Unit == "count" || f.Unit == "bytes"
}

// of is how near the limit the value comes; 1 is there.
func (f figure) of(other float64) float64 {
	if f.smaller() {
		return other / f.Value
	}
	return f.Value / other
}

// bench is a run of the program.
type bench struct {
	ctx     context.Context
	dev     *cpu.Device
	threads int
	repeat  int
	only    *regexp.Regexp
	out     io.Writer
	json    *json.Encoder // or nil
	peers   map[string][]figure
	all     []figure
	err     error

	read, copy float64 // bytes a second
	peak       map[string]float64
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	only := f.String("only", "", "a regular expression that selects figures by name")
	jsonFile := f.String("json", "", "a file for the figures, one JSON object a line")
	peerFile := f.String("peers", "", "figures of bench/peers.py to compare with")
	picture := f.String("picture", "bench.png", "the roofline picture, drawn where some figure has a place in it; empty for none")
	threads := f.Int("threads", runtime.GOMAXPROCS(0), "threads")
	repeat := f.Int("repeat", 10, "the least number of runs of a figure")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	b := &bench{ctx: ctx, threads: *threads, repeat: *repeat, out: out}
	if f.NArg() > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", f.Arg(0))}
	}
	if *threads < 1 || *repeat < 1 {
		return usageError{errors.New("-threads and -repeat are at least 1")}
	}
	if b.only, err = regexp.Compile(*only); err != nil {
		return usageError{fmt.Errorf("-only: %w", err)}
	}
	if *peerFile != "" {
		if b.peers, err = readPeers(*peerFile); err != nil {
			return usageError{fmt.Errorf("-peers: %w", err)}
		}
	}
	if *jsonFile != "" {
		w, err := os.Create(*jsonFile)
		if err != nil {
			return usageError{fmt.Errorf("-json: %w", err)}
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		b.json = json.NewEncoder(w)
	}
	b.dev = cpu.New(cpu.Threads(*threads))
	defer b.dev.Close()
	fmt.Fprintf(out, "%s, tier %s, %d threads, %s %s/%s\n\n", processor(), cpu.Tier(), b.threads, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(out, "%-58s %10s %-9s %10s %8s\n", "figure", "value", "", "limit", "of it")
	b.machine()
	b.operator()
	b.products()
	b.parts()
	b.steps()
	if b.err != nil {
		return b.err
	}
	if len(b.all) == 0 {
		return usageError{fmt.Errorf("-only: no figure matches %q", *only)}
	}
	if *picture == "" {
		return nil
	}
	return b.draw(*picture)
}

func readPeers(name string) (map[string][]figure, error) {
	r, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	peers := map[string][]figure{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var f figure
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if f.Name == "" || !(f.Value > 0) {
			return nil, fmt.Errorf("%s:%d: a figure needs a name and a positive value", name, n)
		}
		peers[f.Name] = append(peers[f.Name], f)
	}
	return peers, lines.Err()
}

// wants reports whether any of the figures is to be measured.
func (b *bench) wants(names ...string) bool {
	for _, n := range names {
		if b.err == nil && b.only.MatchString(n) {
			b.err = b.ctx.Err()
			return b.err == nil
		}
	}
	return false
}

func (b *bench) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// report prints a figure and keeps it.
func (b *bench) report(f figure) {
	if b.err != nil || !b.only.MatchString(f.Name) {
		return
	}
	if f.Threads == 0 {
		f.Threads = b.threads
	}
	b.all = append(b.all, f)
	fmt.Fprintf(b.out, "%-58s %10s %-9s", f.Name, short(f.Value), f.Unit)
	if f.Limit > 0 {
		fmt.Fprintf(b.out, " %10s %7.0f%%", short(f.Limit), 100*f.of(f.Limit))
	}
	for _, p := range b.peers[f.Name] {
		fmt.Fprintf(b.out, "  %.2fx of %s (%s)", f.of(p.Value), p.Peer, short(p.Value))
	}
	fmt.Fprintln(b.out)
	if b.json != nil {
		b.fail(b.json.Encode(f))
	}
}

func short(x float64) string {
	switch {
	case x >= 100 || x == float64(int(x)):
		return fmt.Sprintf("%.0f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

// median is the median time in seconds of at least -repeat runs after two that
// are not counted; of more if they are short.
func (b *bench) median(f func() error) float64 {
	var times []float64
	begin := time.Now()
	for i := -2; len(times) < b.repeat || len(times) < 20*b.repeat && time.Since(begin) < 500*time.Millisecond; i++ {
		if b.err == nil {
			b.err = b.ctx.Err()
		}
		if b.err != nil {
			return 1
		}
		start := time.Now()
		b.fail(f())
		if i >= 0 {
			times = append(times, time.Since(start).Seconds())
		}
	}
	return middle(times)
}

// once is the time of one run in seconds.
func (b *bench) once(f func() error) float64 {
	start := time.Now()
	b.fail(f())
	return time.Since(start).Seconds()
}
