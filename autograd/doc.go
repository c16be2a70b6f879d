// Package autograd records what happened to tensors and runs it backwards.
//
// A [Tape] is one step: Watch the parameters, apply operations, call Backward,
// use the gradients it returns, Release. Gradients are a value; nothing is
// stored in the parameters. The tape knows no operation and no device: an
// operation computes on the tape's stream and records a [Node].
//
// The first failure sticks to the tape, with the operation, its operands and
// the caller's file and line; later operations do nothing. Backward, Download
// and Err return it.
package autograd
