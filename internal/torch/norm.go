package torch

import (
	"context"
	"fmt"

	"symmem"
	"symmem/driver"
)

// Norm is an all-reduce with residual and RMSNorm, as C asks for it.
type Norm struct {
	Rows, Hidden                    int64
	Epsilon                         float32
	Input, Residual, Weight, Output uintptr
	Stream                          uintptr
	// Site is the number of the call site, or 0.
	Site uint32
}

// Norm queues one on a foreign stream. It works on any memory, so nothing is registered.
func (l *Library) Norm(handle uint64, n *Norm) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	args, err := n.resolve()
	if err != nil {
		return err
	}
	s, err := r.stream(n.Stream)
	if err != nil {
		return err
	}
	for _, m := range []symmem.Memory{args.Input, args.Output, args.Residual, args.Weight} {
		if p := r.owner(m.Address()); p != nil && m.Bytes() > 0 {
			if err := p.covers(m); err != nil {
				return err
			}
		}
	}
	return g.AllReduceRMSNorm(context.Background(), args, s)
}

// resolve finds the lengths of the tensors.
func (n *Norm) resolve() (symmem.NormArgs, error) {
	const most = 1 << 44
	args := symmem.NormArgs{
		Rows: n.Rows, Hidden: n.Hidden, Epsilon: n.Epsilon, At: symmem.Site(n.Site),
	}
	if n.Rows < 0 || n.Hidden < 1 || n.Hidden > driver.MaxHidden || n.Rows > most/n.Hidden {
		return args, fmt.Errorf("%d rows of %d elements: %w", n.Rows, n.Hidden, symmem.ErrInvalid)
	}
	row := n.Hidden * int64(symmem.BFloat16.Size())
	args.Input = foreign(n.Input, n.Rows*row)
	args.Residual = foreign(n.Residual, n.Rows*row)
	args.Output = foreign(n.Output, n.Rows*row)
	args.Weight = foreign(n.Weight, row)
	return args, nil
}
