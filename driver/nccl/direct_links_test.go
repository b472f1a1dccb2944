package nccl

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/dl"
)

// TestGroupsWithoutNVLinkHaveNoDirectPath checks that all ranks refuse the direct path for the same
// reason, and that the other paths work.
func TestGroupsWithoutNVLinkHaveNoDirectPath(t *testing.T) {
	requireSoftGPU(t, "has configurable links")
	for _, row := range []struct{ name, link, reason string }{
		{"PCIe", "pcie", "are not connected by NVLink"},
		{"no peer access", "none", "cannot access the memory of GPU"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if err := dl.Setenv("SOFTGPU_LINK", row.link); err != nil {
				t.Fatal(err)
			}
			defer dl.Setenv("SOFTGPU_LINK", "")
			w := newGroup(t, 3, time.Minute)
			reasons := make([]string, len(w.ranks))
			w.must(func(m *testRank) (err error) {
				reasons[m.rank], err = m.checkOtherPaths(w)
				return err
			})
			if !strings.Contains(reasons[0], row.reason) || len(slices.Compact(reasons)) != 1 {
				t.Errorf("got reasons %q, want %q on every rank", reasons, row.reason)
			}
		})
	}
}

// checkOtherPaths returns the reason why a rank refuses the direct path.
func (m *testRank) checkOtherPaths(w *testGroup) (string, error) {
	p, err := m.newRepeatedSum(w, 1, 1000)
	if err != nil {
		return "", err
	}
	call := p.call(driver.PathDirect)
	refusal := m.group.Offer(call).Refusal(driver.PathDirect)
	if !errors.Is(refusal, driver.ErrUnsupported) {
		return "", errors.Join(errors.New("want the direct path refused with ErrUnsupported"), refusal)
	}
	if text := refusal.Error(); strings.Count(text, driver.ErrUnsupported.Error()) != 1 {
		return "", fmt.Errorf("the refusal repeats a phrase: %s", text)
	}
	if _, err := prepare(m.group, call); !errors.Is(err, driver.ErrUnsupported) {
		return "", errors.Join(errors.New("want ErrUnsupported from prepare on the direct path"), err)
	}
	for _, path := range []driver.Path{driver.PathPlain, driver.PathWindow, driver.PathPlain} {
		if err := p.launch(m.group, m.stream, path); err != nil {
			return "", err
		}
	}
	return refusal.Error(), m.check(w, p, m.stream)
}

func TestLinkToInvisibleGPUIsRefused(t *testing.T) {
	w := newTestGroup(t, 1, time.Minute)
	w.must(func(m *testRank) error {
		self := m.device.self
		hidden, remote := self, self
		hidden.GPUID = "GPU-that-is-hidden"
		remote.GPUID, remote.BootID = "GPU-of-another-box", "another one"
		err := checkLinks(m.device.gpu, &self, []*member{&self, &hidden})
		if err == nil || !strings.Contains(err.Error(), "CUDA_VISIBLE_DEVICES") {
			t.Errorf("checkLinks = %v, want an error that mentions CUDA_VISIBLE_DEVICES", err)
		}
		// A GPU of another machine is not refused, because fabric handles may work.
		return checkLinks(m.device.gpu, &self, []*member{&self, &remote})
	})
}
