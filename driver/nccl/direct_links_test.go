package nccl

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/dl"
)

// The direct path needs NVLink between all GPUs of a group. Without NVLink, only the direct path
// refuses calls, and all ranks give the same reason.
func TestGroupsWithoutNVLinkHaveNoDirectPath(t *testing.T) {
	requireSoftGPU(t, "has configurable links")
	for _, test := range []struct {
		name       string
		link       string
		wantReason string // substring
	}{
		{name: "PCIe", link: "pcie", wantReason: "are not connected by NVLink"},
		{name: "no peer access", link: "none", wantReason: "cannot access the memory of GPU"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := dl.Setenv("SOFTGPU_LINK", test.link); err != nil {
				t.Fatal(err)
			}

			defer dl.Setenv("SOFTGPU_LINK", "")
			group := newGroup(t, 3, time.Minute)
			reasons := make([]string, len(group.ranks)) // by rank
			group.must(func(m *testRank) (err error) {
				reasons[m.rank], err = m.checkWithoutDirect(group)
				return err
			})
			for rank, reason := range reasons {
				if !strings.Contains(reason, test.wantReason) {
					t.Errorf("rank %d refuses the direct path because of %q, want a reason that contains %q",
						rank, reason, test.wantReason)
				}

				if reason != reasons[0] {
					t.Errorf("rank %d refuses the direct path because of %q, but rank 0 because of %q", rank,
						reason, reasons[0])
				}
			}
		})
	}
}

// checkWithoutDirect checks that only the direct path refuses a call. It returns the reason.
func (m *testRank) checkWithoutDirect(group *testGroup) (string, error) {
	sum, err := m.newRepeatedSum(group, windowName, smallCount)
	if err != nil {
		return "", err
	}

	call := sum.call(driver.PathDirect)
	refusal := m.group.Offer(call).Refusal(driver.PathDirect)
	if !errors.Is(refusal, driver.ErrUnsupported) {
		return "", failuref("Refusal(direct) = %v, want ErrUnsupported", refusal)
	}

	refusalText := refusal.Error()
	unsupportedText := driver.ErrUnsupported.Error()
	if strings.Count(refusalText, unsupportedText) != 1 {
		return "", failuref("Refusal(direct) = %q, want %q once", refusalText, unsupportedText)
	}

	if _, err := prepare(m.group, call); !errors.Is(err, driver.ErrUnsupported) {
		return "", failuref("prepare on the direct path = %v, want ErrUnsupported", err)
	}

	alternatingPaths := []driver.Path{driver.PathPlain, driver.PathWindow, driver.PathPlain}
	for _, path := range alternatingPaths {
		if err := sum.launch(m.group, m.stream, path); err != nil {
			return "", err
		}
	}

	return refusalText, m.check(group, sum, m.stream)
}

// A GPU that the process cannot see is accepted only on another machine.
func TestLinkToInvisibleGPUIsRefused(t *testing.T) {
	group := newTestGroup(t, 1, time.Minute)
	group.must(func(m *testRank) error {
		self := m.device.self
		hidden := self // BootID identifies the same machine
		hidden.GPUID = "GPU-that-is-hidden"
		err := checkLinks(m.device.gpu, &self, []*member{&self, &hidden})
		if err == nil || !strings.Contains(err.Error(), "CUDA_VISIBLE_DEVICES") {
			t.Errorf("checkLinks with a hidden GPU = %v, want an error that mentions "+
				"CUDA_VISIBLE_DEVICES", err)
		}

		remote := self
		remote.GPUID = "GPU-of-another-machine"
		remote.BootID = "boot ID of another machine"
		if err := checkLinks(m.device.gpu, &self, []*member{&self, &remote}); err != nil {
			t.Errorf("checkLinks with a GPU of another machine = %v, want nil", err)
		}

		return nil
	})
}
