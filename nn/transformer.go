package nn

import (
	"fmt"
	"math"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// Config is the shape of a Transformer.
type Config struct {
	Vocab     int          `json:"vocab"`      // tokens
	Layers    int          `json:"layers"`     // of two sublayers each: attention and SwiGLU
	Dim       int          `json:"dim"`        // width
	Heads     int          `json:"heads"`      // query heads; Dim/Heads is even
	KVHeads   int          `json:"kv_heads"`   // key heads, a divisor of Heads; 0: Heads
	Hidden    int          `json:"hidden"`     // width inside SwiGLU; 0: 8/3 Dim, rounded up to a multiple of 8
	Residual  Residual     `json:"residual"`   //
	BlockSize int          `json:"block_size"` // sublayers of a block, for Block
	RopeBase  float64      `json:"rope_base"`  // 0: 10000
	Eps       float64      `json:"eps"`        // of every norm; 0: 1e-6
	DType     tensor.DType `json:"-"`          // 0: Float32
}

// withDefaults fills in what is 0, and checks.
func (c Config) withDefaults() (Config, error) {
	if c.KVHeads == 0 {
		c.KVHeads = c.Heads
	}
	if c.Hidden == 0 && c.Dim <= 1<<40 {
		c.Hidden = (8*c.Dim/3 + 7) / 8 * 8
	}
	if c.RopeBase == 0 {
		c.RopeBase = 10000
	}
	if c.Eps == 0 {
		c.Eps = 1e-6
	}
	if c.DType == 0 {
		c.DType = tensor.Float32
	}
	bad := func(arg string, got any, want string) error {
		return &tensor.ArgError{Arg: arg, Got: fmt.Sprint(got), Want: want, Kind: tensor.ErrValue}
	}
	if _, err := ParseResidual(string(c.Residual)); err != nil {
		return c, err
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"vocab", c.Vocab}, {"layers", c.Layers}, {"dim", c.Dim}, {"heads", c.Heads}, {"kv heads", c.KVHeads}, {"hidden", c.Hidden}} {
		if n.value < 1 {
			return c, bad(n.name, n.value, "at least 1")
		}
		if n.value > 1<<40 {
			return c, &tensor.ArgError{Arg: n.name, Got: fmt.Sprint(n.value), Want: "at most 2^40", Kind: tensor.ErrSize}
		}
	}
	sources := 1
	switch c.Residual {
	case Block:
		if c.BlockSize < 1 {
			return c, bad("block size", c.BlockSize, "at least 1")
		}
		sources += (2*c.Layers + c.BlockSize - 1) / c.BlockSize
	case Full:
		sources += 2 * c.Layers
	}
	switch {
	case c.Layers > 1<<16:
		return c, bad("layers", c.Layers, "at most 65536")
	case c.Dim%c.Heads != 0:
		return c, bad("dim", c.Dim, fmt.Sprintf("a multiple of %d heads", c.Heads))
	case c.Dim/c.Heads%2 != 0:
		return c, bad("dim / heads", c.Dim/c.Heads, "even, for the rotary embedding")
	case c.Heads%c.KVHeads != 0:
		return c, bad("heads", c.Heads, fmt.Sprintf("a multiple of %d key heads", c.KVHeads))
	case sources > 127:
		return c, bad("sources of the last read", sources, "at most 127 (larger blocks or fewer layers)")
	case !(c.Eps > 0) || math.IsInf(c.Eps, 0):
		return c, bad("eps", c.Eps, "positive and finite")
	case !(c.RopeBase > 0) || math.IsInf(c.RopeBase, 0):
		return c, bad("rope base", c.RopeBase, "positive and finite")
	case !c.DType.IsFloat():
		return c, bad("dtype", c.DType, "a floating-point type")
	}
	return c, nil
}

// Transformer is a decoder-only transformer in the manner of Llama: RMSNorm
// before every sublayer, rotary causal attention, SwiGLU, and a head tied to
// the embedding. How sublayers read one another is Config.Residual.
type Transformer struct {
	Config Config     // with its defaults filled in
	Embed  *Parameter // (Vocab,Dim), also the head
	Layers []Layer    // from the embedding up
	Norm   *Parameter // (Dim): gain of the final norm
	Read   Reader     // the read before the final norm
	params []*Parameter
}

// Reader is one sublayer's query and gain over depth; both nil for PreNorm.
type Reader struct {
	Query *Parameter // (Dim), from zeros: uniform weights
	Gain  *Parameter // (Dim), from ones
}

// Layer is the parameters of an attention and a SwiGLU sublayer.
type Layer struct {
	ReadAttention, ReadMLP Reader     // how each sublayer reads over depth
	AttentionNorm, MLPNorm *Parameter // (Dim)
	Q, K, V, O             *Parameter // (out,in)
	Gate, Up, Down         *Parameter // (out,in)
}

// NewTransformer makes a model with initial values from a seed. Parameters on
// the host; the dtype is the config's. Errors wrap tensor.ErrValue, or
// tensor.ErrSize for one that no machine holds.
func NewTransformer(c Config, seed uint64) (*Transformer, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &maker{seed: seed, dtype: c.DType}
	t := &Transformer{Config: c}
	keep := func(p *Parameter) *Parameter {
		if p != nil {
			t.params = append(t.params, p)
		}
		return p
	}
	reader := func(name string) Reader {
		if c.Residual == PreNorm {
			return Reader{}
		}
		return Reader{Query: keep(m.constant(name+".query", 0, c.Dim)), Gain: keep(m.constant(name+".gain", 1, c.Dim))}
	}
	const base = 0.02
	out := outDeviation(base, 2*c.Layers)
	head := c.Dim / c.Heads
	t.Embed = keep(m.normal("embed", base, c.Vocab, c.Dim))
	for i := range c.Layers {
		n := func(s string) string { return fmt.Sprintf("layers.%d.%s", i, s) }
		t.Layers = append(t.Layers, Layer{
			ReadAttention: reader(n("attention.read")),
			AttentionNorm: keep(m.constant(n("attention.norm"), 1, c.Dim)),
			Q:             keep(m.normal(n("attention.q"), base, c.Dim, c.Dim)),
			K:             keep(m.normal(n("attention.k"), base, c.KVHeads*head, c.Dim)),
			V:             keep(m.normal(n("attention.v"), base, c.KVHeads*head, c.Dim)),
			O:             keep(m.normal(n("attention.o"), out, c.Dim, c.Dim)),
			ReadMLP:       reader(n("mlp.read")),
			MLPNorm:       keep(m.constant(n("mlp.norm"), 1, c.Dim)),
			Gate:          keep(m.normal(n("mlp.gate"), base, c.Hidden, c.Dim)),
			Up:            keep(m.normal(n("mlp.up"), base, c.Hidden, c.Dim)),
			Down:          keep(m.normal(n("mlp.down"), out, c.Dim, c.Hidden)),
		})
	}
	t.Read = reader("head.read")
	t.Norm = keep(m.constant("head.norm", 1, c.Dim))
	return t, m.err
}

// Parameters are all parameters in a fixed order, each once.
func (m *Transformer) Parameters() []*Parameter {
	if m == nil {
		return nil
	}
	return append([]*Parameter(nil), m.params...)
}

// Logits is (B,T,Vocab) for integer ids (B,T).
func (m *Transformer) Logits(t *autograd.Tape, ids *autograd.Var) *autograd.Var {
	return m.forward(t, ids, nil)
}

// Loss is the mean cross-entropy in nats of targets (B,T) given ids (B,T).
func (m *Transformer) Loss(t *autograd.Tape, ids, targets *autograd.Var) *autograd.Var {
	return ops.CrossEntropy(m.Logits(t, ids), targets, ops.MeanOfCounted, ops.IgnoreIndex)
}

// Weights is, for every read in order (attention and MLP of each layer, then the
// head), the softmax weights over its sources, (B,T,L). Empty for PreNorm.
func (m *Transformer) Weights(t *autograd.Tape, ids *autograd.Var) []*autograd.Var {
	var alphas []*autograd.Var
	m.forward(t, ids, func(d *Depth, r Reader) {
		if m.Config.Residual != PreNorm { // m is not nil here
			alphas = append(alphas, d.Weights(r.Query.use(t), r.Gain.use(t), m.Config.Eps))
		}
	})
	return alphas
}

func (m *Transformer) forward(t *autograd.Tape, ids *autograd.Var, look func(*Depth, Reader)) *autograd.Var {
	if m == nil {
		return t.Fails(&tensor.ArgError{Op: "transformer", Arg: "model", Got: "nil", Want: "one that NewTransformer made", Kind: tensor.ErrMissing})
	}
	c := m.Config
	embed := m.Embed.use(t)
	if on, ok := autograd.Begin("transformer", embed, ids); !ok {
		return on.Dead()
	} else if ids != nil && ids.Tensor().Rank() != 2 {
		return on.Fails(&tensor.ArgError{Op: "transformer", Arg: "ids", Got: ids.Shape().String(), Want: "(B,T)", Kind: tensor.ErrRank})
	}
	d, err := NewDepth(c.Residual, c.BlockSize, ops.Embedding(embed, ids))
	if err != nil {
		return t.Fails(err)
	}
	read := func(r Reader, gain *Parameter) *autograd.Var {
		if look != nil {
			look(d, r)
		}
		return ops.RMSNorm(d.Read(r.Query.use(t), r.Gain.use(t), c.Eps), gain.use(t), c.Eps)
	}
	for i := range m.Layers {
		l := &m.Layers[i]
		d.Add(m.attention(t, l, read(l.ReadAttention, l.AttentionNorm)))
		x := read(l.ReadMLP, l.MLPNorm)
		h := ops.SwiGLU(ops.Linear(x, l.Gate.use(t), nil), ops.Linear(x, l.Up.use(t), nil))
		d.Add(ops.Linear(h, l.Down.use(t), nil))
	}
	return ops.Linear(read(m.Read, m.Norm), embed, nil)
}

func (m *Transformer) attention(t *autograd.Tape, l *Layer, x *autograd.Var) *autograd.Var {
	c := m.Config
	s := x.Shape()
	if len(s) != 3 {
		return t.Dead()
	}
	width := c.Dim / c.Heads
	heads := func(w *Parameter, n int) *autograd.Var { // (B,T,n*width) to (B,n,T,width)
		return ops.Transpose(ops.Reshape(ops.Linear(x, w.use(t), nil), s[0], s[1], n, width), 1, 2)
	}
	q := ops.RotaryEmbedding(heads(l.Q, c.Heads), c.RopeBase, 0)
	k := ops.RotaryEmbedding(heads(l.K, c.KVHeads), c.RopeBase, 0)
	y := ops.Attention(q, k, heads(l.V, c.KVHeads), ops.AttentionOptions{Causal: true})
	return ops.Linear(ops.Reshape(ops.Transpose(y, 1, 2), s[0], s[1], c.Dim), l.O.use(t), nil)
}

// Check reports what NewTransformer would refuse.
func (c Config) Check() error {
	_, err := c.withDefaults()
	return err
}
