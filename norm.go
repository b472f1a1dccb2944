package symmem

import (
	"errors"
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/agreement"
)

// OpAllReduceRMSNorm is what AllReduceRMSNorm is called in statistics and errors. Do and Explain
// do not take it.
const OpAllReduceRMSNorm = driver.AllReduceRMSNorm

// NormArgs are the tensors of AllReduceRMSNorm: of bfloat16, whose rows are contiguous and lie one
// behind the other, on addresses of 16. They may be any device memory, in windows or not.
type NormArgs struct {
	// Input and Output are [Rows, Hidden]. They may be one; else they do not overlap.
	Input, Output Memory
	// Residual is [Rows, Hidden], read and written, and alike on all ranks. Weight is [Hidden].
	// Neither overlaps anything else.
	Residual, Weight Memory
	// Rows may be 0. Hidden is a multiple of 8 up to 16384. Both and Epsilon are alike on all
	// ranks.
	Rows, Hidden int64
	// Epsilon is added to the mean of squares: from 0 to 1.
	Epsilon float32
	// At is as in Call.
	At Site
}

// normOf is what a request for a norm has in addition; it is zero in others.
type normOf struct {
	residual, weight Memory
	hidden           int64
	epsilon          float32
}

func (a *NormArgs) rest() normOf {
	return normOf{residual: a.Residual, weight: a.Weight, hidden: a.Hidden, epsilon: a.Epsilon}
}

// checkNorm refuses what no rank could do.
func (g planner) checkNorm(r *wholeRequest) error {
	n := &r.norm
	if n.hidden == 0 {
		return invalid("the operation has a method of its own: AllReduceRMSNorm")
	}
	if n.hidden%driver.NormUnit != 0 || !(n.epsilon >= 0 && n.epsilon <= 1) {
		return invalid("rows of %d elements, epsilon %g", n.hidden, n.epsilon)
	}
	if r.count == 0 {
		return nil
	}
	rows, row := 2*r.count, 2*n.hidden
	tensors := []struct {
		name  string
		at    Memory
		bytes int64
	}{
		{"residual", n.residual, rows},
		{"weight", n.weight, row},
		{"output", r.recv, rows},
		{"input", r.send, rows},
	}
	for i, t := range tensors {
		if err := g.checkMemory(t.name, t.at, t.bytes, BFloat16); err != nil {
			return err
		}
		if t.at.Address()%driver.NormAlign != 0 {
			return invalid("%s at %#x is not aligned to %d bytes", t.name, t.at.Address(),
				driver.NormAlign)
		}
		for _, u := range tensors[:min(i, 2)] {
			if overlap(t.at.Address(), t.bytes, u.at.Address(), u.bytes) {
				return invalid("%s and %s overlap", t.name, u.name)
			}
		}
	}
	return nil
}

func overlap(a uintptr, aBytes int64, b uintptr, bBytes int64) bool {
	return a < b+uintptr(bBytes) && b < a+uintptr(aBytes)
}

// routeNorm is route for a norm, which goes direct or not at all, and looks for no windows.
func (g planner) routeNorm(r *wholeRequest) (call driver.Call, why reason) {
	n := &r.norm
	call = driver.Call{
		Operation: r.operation, DataType: r.dataType, ReduceOp: r.reduceOp, Count: r.count,
		Send: r.send.Address(), Recv: r.recv.Address(), Path: driver.PathDirect,
		Keep: [4]unsafe.Pointer{r.send.start, r.recv.start, n.residual.start, n.weight.start},
		Norm: &driver.Norm{
			Rows: r.count / n.hidden, Hidden: n.hidden, Epsilon: n.epsilon,
			Residual: n.residual.Address(), Weight: n.weight.Address(),
		},
	}
	call.Digest = digest(g.describe(&call, 0))
	return call, reason{text: "norms go direct or not at all"}
}

// refuseNorm says why a norm cannot go direct, if it is one.
func (g planner) refuseNorm(call *driver.Call) error {
	if call.Norm == nil {
		return nil
	}
	if c := PathChoice(g.choice.Load()); c == PathPlain || c == PathWindow {
		return fmt.Errorf("the group is set to the %v path: %w", c, ErrUnsupported)
	}
	return g.comm.Direct(call)
}

// describeNorm says what else must be alike, in the words that there are.
func describeNorm(c *agreement.CollectiveCall, n *driver.Norm) {
	c.DataType = fmt.Sprintf("%s[%d]", c.DataType, n.Hidden)
	c.ReduceOp = fmt.Sprintf("%s, epsilon %g", c.ReduceOp, n.Epsilon)
}

// aliveNorm is alive for what a norm has in addition.
func (p *preparedPlan) aliveNorm() error {
	n := &p.request.norm
	return errors.Join(n.residual.stillAlive(&p.normFrees[0]), n.weight.stillAlive(&p.normFrees[1]))
}
