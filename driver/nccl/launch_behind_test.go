package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// TestACallDoesNotWaitForAGraphThatSendsAgain has rank 0 launch a graph with a Send twice, the
// second time behind a call: the stream waits there until rank 1, behind its next call, receives.
func TestACallDoesNotWaitForAGraphThatSendsAgain(t *testing.T) {
	w := newTeam(t, 2, 10*time.Second)
	w.steps = true
	w.play(0, 1)
	w.must(func(m *mate) error {
		p, err := m.newPower(w, 1, 1000)
		mailed, failed := m.grow(8)
		other, opened := m.device.NewStream()
		if err = errors.Join(err, failed, opened); err != nil {
			return err
		}
		defer other.Close()
		message := driver.Call{
			Operation: driver.Send, DataType: driver.Uint8, Count: 8, Root: 1 - m.rank,
			Send: mailed.segment.Address(), Recv: mailed.segment.Address(),
		}
		if m.rank == 1 {
			message.Operation = driver.Recv
		}
		plan, err := prepare(m.group, message)
		if err != nil {
			return err
		}
		mail, first := func() error { return m.group.Launch(other, plan) }, m.stream
		if m.rank == 0 {
			err = errors.Join(first.BeginCapture(), m.group.Launch(first, plan))
			g, failed := first.EndCapture()
			if err = errors.Join(err, failed); err != nil {
				return err
			}
			m.graphs = append(m.graphs, g)
			mail = func() error { return g.Launch(first) }
			err = mail()
		}
		err = errors.Join(err, p.raise(m.group, first, driver.PathDirect))
		if m.rank == 0 {
			err = errors.Join(err, mail())
		}
		err = errors.Join(err, p.raise(m.group, other, driver.PathDirect))
		if m.rank == 1 {
			err = errors.Join(err, mail(), mail())
		}
		return errors.Join(err, m.check(w, p, first, other))
	})
}
