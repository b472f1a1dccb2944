package nccl

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/dl"
)

// TestGroupsWithoutNVLinkHaveNoDirectPath also checks that all ranks say why, and that the other
// paths work.
func TestGroupsWithoutNVLinkHaveNoDirectPath(t *testing.T) {
	if !soft(t) {
		t.Skip("only the software GPU has the links that it is told")
	}
	for _, row := range []struct{ sentence, link, why string }{
		{"over PCIe lines may come in pieces", "pcie", "are not joined by NVLink"},
		{"without a link nothing comes", "none", "cannot reach the memory of GPU"},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			if err := dl.Setenv("SOFTGPU_LINK", row.link); err != nil {
				t.Fatal(err)
			}
			defer dl.Setenv("SOFTGPU_LINK", "")
			w := newGroup(t, 3, time.Minute)
			said := make([]string, len(w.ranks))
			w.must(func(m *testRank) (err error) {
				said[m.rank], err = m.doWithout(w)
				return err
			})
			if !strings.Contains(said[0], row.why) || len(slices.Compact(said)) != 1 {
				t.Errorf("the ranks say %q, want %s", said, row.why)
			}
		})
	}
}

// doWithout shows that a rank has all paths but the direct one, and returns why.
func (m *testRank) doWithout(w *testGroup) (string, error) {
	p, err := m.newPower(w, 1, 1000)
	if err != nil {
		return "", err
	}
	call := p.call(driver.PathDirect)
	refusal := m.group.Offer(call).Refusal(driver.PathDirect)
	if !errors.Is(refusal, driver.ErrUnsupported) {
		return "", errors.Join(errors.New("the direct path is open"), refusal)
	}
	if _, err := prepare(m.group, call); !errors.Is(err, driver.ErrUnsupported) {
		return "", errors.Join(errors.New("a call on the direct path was prepared"), err)
	}
	for _, path := range []driver.Path{driver.PathPlain, driver.PathWindow, driver.PathPlain} {
		if err := p.raise(m.group, m.stream, path); err != nil {
			return "", err
		}
	}
	return refusal.Error(), m.check(w, p, m.stream)
}

// TestAGPUThatIsNotSeenIsNotReached: nothing is known about the link to such a GPU.
func TestAGPUThatIsNotSeenIsNotReached(t *testing.T) {
	w := newTestGroup(t, 1, time.Minute)
	w.must(func(m *testRank) error {
		self := m.device.self
		hidden, far := self, self
		hidden.GPU, far.GPU, far.Boot = "GPU-that-is-hidden", "GPU-of-another-box", "another one"
		err := linked(m.device.gpu, &self, []*member{&self, &hidden})
		if !errors.Is(err, driver.ErrUnsupported) ||
			!strings.Contains(err.Error(), "CUDA_VISIBLE_DEVICES") {
			t.Errorf("got %v", err)
		}
		// A GPU of another machine is not refused here: fabric handles may reach it.
		return linked(m.device.gpu, &self, []*member{&self, &far})
	})
}
