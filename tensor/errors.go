package tensor

import "errors"

// The kinds of wrong argument, for errors.Is. Every error about an argument
// anywhere in the module wraps one of them.
var (
	ErrMissing = errors.New("missing")            // nil where something is needed
	ErrShape   = errors.New("shape")              // sizes that do not fit together
	ErrRank    = errors.New("rank")               // a wrong number of axes
	ErrAxis    = errors.New("axis")               // an axis out of range or given twice
	ErrIndex   = errors.New("index out of range") // an index or id past the end
	ErrDType   = errors.New("dtype")              // a wrong element type
	ErrDevice  = errors.New("device")             // memory on another device
	ErrValue   = errors.New("value")              // a number that makes no sense here
	ErrSize    = errors.New("size overflow")      // more elements or bytes than an int holds
	ErrAlias   = errors.New("alias")              // an output that shares memory with an input
	ErrFreed   = errors.New("freed")              // memory that was given back
	ErrCount   = errors.New("count")              // too few or too many of something
)

// ArgError says which argument of which operation is wrong, what it is and
// what it ought to be. It wraps its Kind.
type ArgError struct {
	Op   string // the operation, such as "blockattnres"; may be empty
	Arg  string // the argument with its index, such as "blocks[3]"
	Got  string // what it is
	Want string // what it ought to be
	Kind error  // one of the Err variables of this package
}

// Error is the message: operation, argument, what it was and what was wanted.
func (e *ArgError) Error() string {
	s := e.Arg + " is " + e.Got + ", want " + e.Want
	if e.Op != "" {
		s = e.Op + ": " + s
	}
	return s
}

// Unwrap is Kind, for errors.Is.
func (e *ArgError) Unwrap() error { return e.Kind }
