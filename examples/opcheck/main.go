// Opcheck runs test cases in JSON from standard input and writes the same list
// with the results to standard output. Exit status 0, or 2 for wrong arguments
// or a malformed file; a case that is refused gets an error string.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/internal/cases"
	"github.com/lamina-go/lamina/tensor"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, in io.Reader, out, errs io.Writer) int {
	flags := flag.NewFlagSet("opcheck", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // one sentence for a mistake, the list of flags for -help
	where := flags.String("device", "cpu", "where to compute: cpu or ascend:0")
	path := flags.String("path", "fused", "how BlockAttnRes is computed: fused or decomposed")
	if err := flags.Parse(args); err != nil {
		if err == flag.ErrHelp {
			fmt.Fprintln(out, "Opcheck runs test cases in JSON from standard input. Flags:")
			flags.SetOutput(out)
			flags.PrintDefaults()
			return 0
		}
		fmt.Fprintln(errs, "opcheck:", err)
		return 2
	}
	if flags.NArg() > 0 || *path != "fused" && *path != "decomposed" {
		fmt.Fprintln(errs, "opcheck: usage: opcheck [-device cpu|ascend:0] [-path fused|decomposed] < cases.json")
		return 2
	}
	dev, err := open(*where)
	if err != nil {
		fmt.Fprintln(errs, "opcheck:", err)
		return 2
	}
	list, err := cases.Read(bufio.NewReader(in))
	if err != nil {
		fmt.Fprintln(errs, "opcheck:", err)
		return 2
	}
	got := make([]cases.Got, len(list))
	for i, c := range list {
		got[i] = c.Run(dev, *path)
	}
	if err := cases.Write(out, list, got); err != nil {
		fmt.Fprintln(errs, "opcheck:", err)
		return 1
	}
	return 0
}

func open(name string) (device.Device, error) {
	d, err := tensor.ParseDevice(name)
	if err != nil {
		return nil, err
	}
	if d == tensor.CPU {
		return cpu.New(), nil
	}
	return nil, fmt.Errorf("this build has no %v backend yet; use -device cpu", d)
}
