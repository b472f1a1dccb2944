package nccl

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
)

// uneven is an AllToAllV over a power in which each rank sends so many numbers to the next one.
func (m *mate) uneven(p *power, count int64, path driver.Path) driver.Call {
	ranks := len(m.group.(*communicator).cfg.Ranks)
	none := func() []int64 { return make([]int64, ranks) }
	s := &driver.Splits{
		SendCounts: none(), SendOffsets: none(), RecvCounts: none(), RecvOffsets: none(),
	}
	s.SendCounts[(m.rank+1)%ranks], s.RecvCounts[(m.rank+ranks-1)%ranks] = count, count
	call := p.call(path)
	call.Operation, call.Count, call.Splits = driver.AllToAllV, 0, s
	return call
}

// TestSplitsInACaptureAreCompared: a replay would wait without end for what nobody sends.
func TestSplitsInACaptureAreCompared(t *testing.T) {
	w := newTeam(t, 2, 10*time.Second)
	w.play(0, 1)
	w.must(func(m *mate) error {
		m.group.SetCheck(true)
		p, err := m.newPower(w, 1, 1000)
		if err != nil {
			return err
		}
		call := m.uneven(p, 10, driver.PathPlain)
		call.Splits.RecvCounts[1-m.rank] += int64(m.rank)
		_, err = m.capturedBy(call)
		if differ := (*driver.MessageError)(nil); !errors.As(err, &differ) || len(differ.Ends) != 1 {
			return fmt.Errorf("got %w, want a MessageError of one pair", err)
		}
		return nil
	})
}
