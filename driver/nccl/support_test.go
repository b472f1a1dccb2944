package nccl

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/nccl"
	"symmem/internal/sys/systest"
)

// guardedVersions reports for versions of NCCL whether an empty kernel must be launched before
// window kernels.
var guardedVersions = map[string]bool{
	"22703": false, "22802": false, "22803": true, "22809": true, "23006": true, "23007": false,
	"23203": false,
}

// guardLog is logged by TestWindowKernelsWaitForEarlierWork if it expects an empty kernel.
const guardLog = "an empty kernel is launched before window kernels"

// TestGuardForKernelsThatStartEarly runs the next test with several versions of NCCL.
func TestGuardForKernelsThatStartEarly(t *testing.T) {
	requireSoftGPU(t, "has a configurable version of NCCL")
	for version, wantGuard := range guardedVersions {
		t.Run(version, func(t *testing.T) {
			c := systest.Command(t, systest.Patience, os.Args[0], "-test.v",
				"-test.run=^TestWindowKernelsWaitForEarlierWork$")
			c.Env = append(os.Environ(), "SOFTGPU_NCCL="+version)
			output, err := c.CombinedOutput()
			if err != nil || strings.Contains(string(output), guardLog) != wantGuard {
				t.Errorf("error = %v, want nil; expected an empty kernel: %t; output:\n%s", err, wantGuard,
					output)
			}
		})
	}
}

func TestWindowKernelsWaitForEarlierWork(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	isGuarded := w.opened[0].device.hasEarlyStart()
	if isGuarded {
		t.Log(guardLog)
	}
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(1 << 20)
		if err == nil {
			err = m.group.(driver.LazyWindows).UseWindows(t.Context())
		}
		if err == nil {
			err = m.register(w, s, 0)
		}
		if err != nil {
			return err
		}
		call := driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float32, Count: 1 << 10,
			Send: s.segment.Address(), Recv: s.segment.Address(), SendWindow: s.window,
			RecvWindow: s.window, Path: driver.PathWindow,
		}
		return m.checkGuard(w, call, isGuarded)
	})
}

// checkGuard checks that an empty kernel precedes the call on the window path if isGuarded is set,
// and that there is no empty kernel otherwise.
func (m *testRank) checkGuard(w *testGroup, call driver.Call, isGuarded bool) error {
	for _, path := range []driver.Path{driver.PathWindow, driver.PathPlain} {
		offer := m.group.Offer(call)
		remark := offer.(driver.Remarker).Remark(path)
		made, err := offer.Take(path, 0)
		if err != nil {
			return err
		}
		p, want := made.(*plan), isGuarded && path == driver.PathWindow
		if (p.guard != nil) != want || p.singleCall.Prepared() == want ||
			p.guardedCall.Prepared() != want {
			w.t.Errorf("%v path: plan = %+v, want an empty kernel: %v", path, p, want)
		}
		if strings.Contains(remark, "an empty kernel is launched before it") != want {
			w.t.Errorf("%v path: Remark = %q, want a mention of an empty kernel: %v", path, remark, want)
		}
		if err := m.group.Launch(m.stream, p); err != nil {
			return err
		}
	}
	return m.stream.Synchronize(w.t.Context())
}

func TestCommunicatorWithEarlyStartIsNotAdopted(t *testing.T) {
	w := newGroup(t, 1, 10*time.Second)
	m := w.opened[0]
	if !m.device.hasEarlyStart() {
		t.Skipf("this NCCL does not have the defect EarlyStart: %v", driver.ErrUnsupported)
	}
	if _, err := m.device.AdoptCommunicator(1); !errors.Is(err, driver.ErrUnsupported) ||
		!strings.Contains(err.Error(), nccl.VersionText(nccl.EarlyStart.FixedIn)) {
		t.Errorf("AdoptCommunicator = %v, want ErrUnsupported with the first fixed version", err)
	}
	t.Setenv(allowEarlyStartVariable, "1")
	adopted, err := m.device.AdoptCommunicator(uintptr(m.group.(*communicator).comm.handle))
	if err != nil || adopted.Size() != 1 {
		t.Errorf("AdoptCommunicator with %s=1 = %v, %v; want a communicator of 1 rank",
			allowEarlyStartVariable,
			adopted, err)
	}
}

// TestRemarkOnMisalignedBuffers checks that only large misaligned calls get a remark.
func TestRemarkOnMisalignedBuffers(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	needDirect(t, w.opened[0].group)
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(96 << 20)
		if err == nil {
			err = m.register(w, s, 0)
		}
		if err != nil {
			return err
		}
		base := s.segment.Address()
		for _, test := range []struct {
			operation driver.Operation
			count     int64
			shift     uintptr
			want      bool
		}{
			{driver.AllReduce, 8 << 20, 0, false},
			{driver.AllReduce, 8 << 20, 16, false},
			{driver.AllReduce, 8 << 20, 4, true},
			{driver.AllReduce, 1 << 10, 4, false}, // uses a line kernel
			{driver.ReduceScatter, 4<<20 + 1, 0, true},
			{driver.ReduceScatter, 4 << 20, 0, false},
		} {
			call := driver.Call{
				Operation: test.operation, DataType: driver.Float32, Count: test.count,
				Send: base, Recv: base + 48<<20 + test.shift, SendWindow: s.window, RecvWindow: s.window,
			}
			remark := m.group.Offer(call).(driver.Remarker).Remark(driver.PathDirect)
			if strings.Contains(remark, "different offsets modulo 16 bytes") != test.want {
				t.Errorf("%v of %d, misaligned by %d bytes: Remark = %q, want a remark on alignment: %v",
					test.operation, test.count, test.shift, remark, test.want)
			}
		}
		return nil
	})
}

func TestGroupWithoutWindowNamesItsReason(t *testing.T) {
	for machines, want := range map[int]string{
		1: "symmem doctor", 2: "on 2 machines, because they need GIN",
	} {
		s := windowSupport{machines: machines}
		s.disable(3, "2.32.3")
		s.disable(4, "2.32.3")
		for _, text := range []string{"NCCL 2.32.3", "rank 3", want} {
			if !strings.Contains(s.noWindowsReason, text) {
				t.Errorf("on %d machines, the reason is %q, want one that contains %q", machines,
					s.noWindowsReason, text)
			}
		}
	}
}
