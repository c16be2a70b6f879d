// Mutate seeds bugs into a copy of the sources, one at a time, and shows that
// the quick tests see each. From the repository's root:
//
//	go run ./tests/mutate
//
// The bugs are listed in mutants/*.txt; see [parse] for the form. Each is built
// into a variant of the function it is in, all variants into one set of test
// binaries, and an environment variable chooses the one that runs, so that
// nothing is compiled twice. A bug is killed if a test fails, dies or does not
// end; if every test passes it has survived, and a test is missing. A bug that
// changes nothing a test could see is listed with its reason as equivalent, and
// must survive.
//
// The last line is "N mutants, N killed, N survived, N equivalent". Exit status
// 0 if none survived, 1 if one did, 2 for wrong arguments.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	features "golang.org/x/sys/cpu"
	"golang.org/x/term"

	"github.com/lamina-go/lamina/device/cpu"
)

//go:embed mutants/*.txt
var lists embed.FS

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings are the flags.
type settings struct {
	only    *regexp.Regexp
	verbose bool
	workers int
	root    string
	keep    string
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	only := flags.String("only", "", "run the mutants whose line this regular expression matches")
	s := settings{}
	flags.BoolVar(&s.verbose, "v", false, "a line for each mutant, with the test that killed it")
	flags.IntVar(&s.workers, "workers", runtime.NumCPU(), "mutants tested at the same time")
	flags.StringVar(&s.keep, "keep", "", "folder for the sources and binaries; kept afterwards")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(out, "Mutate seeds bugs into a copy of the sources and shows that the quick tests see each. Flags:")
		flags.SetOutput(out)
		flags.PrintDefaults()
		return 0
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	if err == nil && s.workers < 1 {
		err = fmt.Errorf("-workers is %d, want at least 1", s.workers)
	}
	if err == nil {
		s.only, err = regexp.Compile(*only)
	}
	if err == nil {
		s.root, err = root()
	}
	var mutants []*mutant
	if err == nil {
		mutants, err = readLists()
	}
	if err != nil {
		fmt.Fprintln(errs, "mutate:", err)
		return 2
	}
	survived, err := s.test(ctx, mutants, out, errs)
	if err != nil {
		fmt.Fprintln(errs, "mutate:", err)
		return 1
	}
	if survived > 0 {
		return 1
	}
	return 0
}

// root is the folder of the module's go.mod, at or above the working directory.
func root() (string, error) {
	path, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	mod := strings.TrimSpace(string(path))
	if mod == "" || mod == os.DevNull {
		return "", errors.New("not within the module")
	}
	return filepath.Dir(mod), nil
}

func readLists() (all []*mutant, err error) {
	files, err := lists.ReadDir("mutants")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := lists.ReadFile("mutants/" + f.Name())
		if err != nil {
			return nil, err
		}
		list, err := parse(f.Name(), string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	for i, m := range all {
		m.number = i + 1
	}
	return all, nil
}

// has reports whether this machine has a tier of instructions.
func has(tier string) bool {
	best := cpu.Tier()
	switch tier {
	case "avx2":
		return best == "avx2" || best == "avx512"
	case "avx512_bf16":
		return best == "avx512" && features.X86.HasAVX512BF16
	}
	return tier == "" || tier == best
}

// test builds and runs the mutants and gives how many survived.
func (s settings) test(ctx context.Context, mutants []*mutant, out, errs io.Writer) (survived int, err error) {
	started := time.Now()
	dir := s.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "mutate"); err != nil {
			return 0, err
		}
		defer os.RemoveAll(dir)
	}
	var chosen []*mutant
	left := 0
	for _, m := range mutants {
		switch {
		case !s.only.MatchString(m.String()):
		case !has(m.needs):
			left++
		default:
			chosen = append(chosen, m)
		}
	}
	if left > 0 {
		fmt.Fprintf(out, "%d mutants are left out: this machine has not the instructions\n", left)
	}
	b, err := build(ctx, s.root, dir, mutants, chosen)
	if err != nil {
		return 0, err
	}
	if err := b.baseline(ctx); err != nil {
		return 0, err
	}
	f, terminal := errs.(*os.File)
	if !terminal || !term.IsTerminal(int(f.Fd())) {
		errs = io.Discard
	}
	bar := progressbar.NewOptions(len(chosen), progressbar.OptionSetWriter(errs), progressbar.OptionSetDescription("mutants"), progressbar.OptionShowCount(), progressbar.OptionClearOnFinish())
	var mu sync.Mutex
	var killed, equivalent int
	work := make(chan *mutant)
	var wg sync.WaitGroup
	for range s.workers {
		wg.Go(func() {
			for m := range work {
				by, took, e := b.try(ctx, m)
				mu.Lock()
				line := ""
				switch {
				case e != nil:
					err = errors.Join(err, e)
				case by != "" && m.equivalent == "":
					killed++
					if s.verbose {
						line = fmt.Sprintf("killed      %5.1fs  %v  by %s", took.Seconds(), m, by)
					}
				case by == "" && m.equivalent != "":
					equivalent++
					if s.verbose {
						line = fmt.Sprintf("equivalent  %5.1fs  %v", took.Seconds(), m)
					}
				case by == "":
					survived++
					line = fmt.Sprintf("survived    %5.1fs  %v", took.Seconds(), m)
				default:
					survived++
					line = fmt.Sprintf("not equivalent: %v is killed by %s", m, by)
				}
				if line != "" {
					_ = bar.Clear()
					fmt.Fprintln(out, line)
				}
				_ = bar.Add(1)
				mu.Unlock()
			}
		})
	}
	for _, m := range chosen {
		if ctx.Err() != nil {
			break
		}
		work <- m
	}
	close(work)
	wg.Wait()
	_ = bar.Finish()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return survived, err
	}
	fmt.Fprintf(out, "%.0f s on %d processors\n", time.Since(started).Seconds(), runtime.NumCPU())
	fmt.Fprintf(out, "%d mutants, %d killed, %d survived, %d equivalent\n", len(chosen), killed, survived, equivalent)
	return survived, nil
}
