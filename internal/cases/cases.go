// Package cases reads and runs test cases in JSON: small operations and the
// BlockAttnRes operator, with the answers of an independent program.
package cases

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Case is one case: of a small op if Op is not empty, else of the operator.
// Fields that the program does not know are kept as they came.
type Case struct {
	raw  map[string]json.RawMessage
	keys []string // in the order of the file

	Op    string
	Block *Block
	Small *Small
	bad   error // fields that cannot be read: the case is refused, the others run
}

// Name is the case's name or id.
func (c *Case) Name() string {
	var s string
	for _, k := range []string{"id", "name"} {
		if json.Unmarshal(c.raw[k], &s) == nil && s != "" {
			return s
		}
	}
	return c.Op
}

// Read reads one JSON list of objects that have op or blocks. Anything else is
// an error; an object whose other fields make no sense is a case that is refused.
func Read(r io.Reader) ([]*Case, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("not a JSON list of cases: %w", err)
	}
	if list == nil {
		return nil, errors.New("not a JSON list of cases: null")
	}
	out := make([]*Case, len(list))
	for i, raw := range list {
		c := &Case{}
		if err := c.read(raw); err != nil {
			return nil, fmt.Errorf("case %d: %w", i, err)
		}
		out[i] = c
	}
	return out, nil
}

func (c *Case) read(raw json.RawMessage) error {
	if err := json.Unmarshal(raw, &c.raw); err != nil {
		return err
	}
	if c.raw == nil {
		return errors.New("null is no case")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	depth := 0
	for {
		tok, err := dec.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		switch d := tok.(type) {
		case json.Delim:
			if d == '{' || d == '[' {
				depth++
			} else {
				depth--
			}
		case string:
			if depth == 1 {
				if !contains(c.keys, d) {
					c.keys = append(c.keys, d)
				}
				var skip json.RawMessage
				if err := dec.Decode(&skip); err != nil {
					return err
				}
			}
		}
	}
	if op, ok := c.raw["op"]; ok {
		if err := json.Unmarshal(op, &c.Op); err != nil || c.Op == "" {
			return errors.New("op is not a name")
		}
		c.Small = &Small{}
		c.bad = json.Unmarshal(raw, c.Small)
		return nil
	}
	if _, ok := c.raw["blocks"]; !ok {
		return errors.New("it has neither op nor blocks")
	}
	c.Block = &Block{Scale: 1, Eps: 1e-6, RMSNorm: true}
	c.bad = json.Unmarshal(raw, c.Block)
	return nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// Got is what running a case gave: an object of the shape of want, or an error.
type Got struct {
	Value any // Outputs or *BlockResult
	Err   error
}

// Write writes the cases as they came, each with its result as got or error.
func Write(w io.Writer, list []*Case, got []Got) error {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, c := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n{")
		for _, k := range c.keys {
			if k == "got" || k == "error" {
				continue
			}
			name, _ := json.Marshal(k)
			b.Write(name)
			b.WriteByte(':')
			b.Write(c.raw[k])
			b.WriteByte(',')
		}
		var err error
		var v []byte
		if got[i].Err != nil {
			b.WriteString(`"error":`)
			v, err = json.Marshal(got[i].Err.Error())
		} else {
			b.WriteString(`"got":`)
			v, err = json.Marshal(got[i].Value)
		}
		if err != nil {
			return err
		}
		b.Write(v)
		b.WriteByte('}')
	}
	b.WriteString("\n]\n")
	_, err := w.Write(b.Bytes())
	return err
}

// Run runs a case on a device. The path is "fused" or "decomposed" and matters
// to the operator alone.
func (c *Case) Run(dev device.Device, path string) Got {
	if c.bad != nil {
		return Got{Err: c.bad}
	}
	var v any
	var err error
	if c.Block != nil {
		v, err = c.Block.Run(dev, path)
	} else {
		v, err = c.Small.Run(dev)
	}
	var where *autograd.OpError
	if errors.As(err, &where) { // a place in this program tells the reader of the file nothing
		plain := *where
		plain.Where = ""
		err = &plain
	}
	return Got{Value: v, Err: err}
}

// Number is a float64 whose JSON may also be "NaN", "Infinity" or "-Infinity".
type Number float64

// UnmarshalJSON reads a number or one of the three strings.
func (n *Number) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case `"NaN"`:
		*n = Number(math.NaN())
		return nil
	case `"Infinity"`:
		*n = Number(math.Inf(1))
		return nil
	case `"-Infinity"`:
		*n = Number(math.Inf(-1))
		return nil
	case "null":
		return errors.New("null where a number is expected")
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil && !math.IsInf(f, 0) || len(b) > 0 && strings.ContainsAny(string(b[:1]), `"[{tf`) {
		return fmt.Errorf("%.40s is not a number", b)
	}
	*n = Number(f)
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads, with enough digits to be exact.
func (n Number) MarshalJSON() ([]byte, error) {
	f := float64(n)
	switch {
	case math.IsNaN(f):
		return []byte(`"NaN"`), nil
	case math.IsInf(f, 1):
		return []byte(`"Infinity"`), nil
	case math.IsInf(f, -1):
		return []byte(`"-Infinity"`), nil
	}
	return strconv.AppendFloat(nil, f, 'g', -1, 64), nil
}

func floats(ns []Number) []float64 {
	out := make([]float64, len(ns))
	for i, n := range ns {
		out[i] = float64(n)
	}
	return out
}

func numbers(fs []float64) []Number {
	out := make([]Number, len(fs))
	for i, f := range fs {
		out[i] = Number(f)
	}
	return out
}

func invalid(arg, got, want string) error {
	return &tensor.ArgError{Op: "case", Arg: arg, Got: got, Want: want, Kind: tensor.ErrValue}
}

var posInf, negInf = math.Inf(1), math.Inf(-1)
