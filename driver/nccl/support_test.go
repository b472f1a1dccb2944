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

// needsGuard maps version codes of NCCL to whether the version has the defect nccl.EarlyStart.
// With this defect, window kernels may start before earlier work in the stream has ended. symmem
// therefore launches a guard (an empty kernel) before them.
var needsGuard = map[string]bool{
	"22703": false, "22802": false, "22803": true, "22809": true, "23006": true, "23007": false,
	"23203": false,
}

// guardLog is logged by TestWindowKernelsWaitForEarlierWork if it expects a guard.
const guardLog = "an empty kernel is launched before window kernels"

// TestGuardForKernelsThatStartEarly runs TestWindowKernelsWaitForEarlierWork with several versions
// of NCCL.
func TestGuardForKernelsThatStartEarly(t *testing.T) {
	requireSoftGPU(t, "has a configurable version of NCCL")
	for version, wantGuard := range needsGuard {
		t.Run(version, func(t *testing.T) {
			c := systest.Command(t, systest.Patience, os.Args[0], "-test.v",
				"-test.run=^TestWindowKernelsWaitForEarlierWork$")
			c.Env = append(os.Environ(), "SOFTGPU_NCCL="+version)
			output, err := c.CombinedOutput()
			if err != nil {
				t.Errorf("the child process failed: %v\n%s", err, output)
			}
			if hasGuard := strings.Contains(string(output), guardLog); hasGuard != wantGuard {
				t.Errorf("an empty kernel is expected: %t, want %t; output:\n%s", hasGuard, wantGuard,
					output)
			}
		})
	}
}

// TestWindowKernelsWaitForEarlierWork checks that only calls on the window path have a guard, and
// only if NCCL has the defect nccl.EarlyStart.
func TestWindowKernelsWaitForEarlierWork(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	needsGuard := w.opened[0].device.hasEarlyStart()
	if needsGuard {
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
		return m.checkGuard(w, call, needsGuard)
	})
}

// checkGuard prepares and launches the call on the window path and on the plain path. The plan and
// the remark on the window path must have a guard if needsGuard is set, and those on the plain
// path must have none.
func (m *testRank) checkGuard(w *testGroup, call driver.Call, needsGuard bool) error {
	for _, path := range []driver.Path{driver.PathWindow, driver.PathPlain} {
		offer := m.group.Offer(call)
		remark := offer.(driver.Remarker).Remark(path)
		prepared, err := offer.Take(path, 0)
		if err != nil {
			return err
		}
		p := prepared.(*plan)
		wantGuard := needsGuard && path == driver.PathWindow
		if hasGuard := p.guard != nil; hasGuard != wantGuard {
			w.t.Errorf("%v path: the plan has an empty kernel: %t, want %t", path, hasGuard, wantGuard)
		}
		if p.singleCall.Prepared() == wantGuard || p.guardedCall.Prepared() != wantGuard {
			w.t.Errorf("%v path: plan = %+v, want only guardedCall prepared: %t", path, p, wantGuard)
		}
		hasRemark := strings.Contains(remark, "an empty kernel is launched before it")
		if hasRemark != wantGuard {
			w.t.Errorf("%v path: Remark = %q, want a mention of an empty kernel: %t", path, remark,
				wantGuard)
		}
		if err := m.group.Launch(m.stream, p); err != nil {
			return err
		}
	}
	return m.stream.Synchronize(w.t.Context())
}

// TestCommunicatorWithEarlyStartIsNotAdopted checks that AdoptCommunicator refuses an NCCL that
// has the defect nccl.EarlyStart unless allowEarlyStartVariable is set.
func TestCommunicatorWithEarlyStartIsNotAdopted(t *testing.T) {
	w := newGroup(t, 1, 10*time.Second)
	m := w.opened[0]
	if !m.device.hasEarlyStart() {
		t.Skipf("this NCCL does not have the defect EarlyStart: %v", driver.ErrUnsupported)
	}
	const unusedHandle = 1 // any handle but 0: AdoptCommunicator must fail before it is used
	_, err := m.device.AdoptCommunicator(unusedHandle)
	fixedVersion := nccl.VersionText(nccl.EarlyStart.FixedIn)
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), fixedVersion) {
		t.Errorf("AdoptCommunicator = %v, want ErrUnsupported that mentions NCCL %s", err, fixedVersion)
	}
	t.Setenv(allowEarlyStartVariable, "1")
	adopted, err := m.device.AdoptCommunicator(uintptr(m.group.(*communicator).comm.handle))
	if err != nil || adopted.Size() != 1 {
		t.Errorf("AdoptCommunicator with %s=1 = %v, %v; want a communicator of 1 rank",
			allowEarlyStartVariable, adopted, err)
	}
}

// TestRemarkOnMisalignedBuffers checks that a large call gets a remark if its buffers, or the
// parts of the ranks in a buffer, have different offsets modulo 16 bytes.
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
			operation  driver.Operation
			count      int64
			recvOffset uintptr // bytes added to the address of Recv
			wantRemark bool
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
				Send: base, Recv: base + 48<<20 + test.recvOffset,
				SendWindow: s.window, RecvWindow: s.window,
			}
			remark := m.group.Offer(call).(driver.Remarker).Remark(driver.PathDirect)
			hasRemark := strings.Contains(remark, "different offsets modulo 16 bytes")
			if hasRemark != test.wantRemark {
				t.Errorf("%v of %d, Recv offset by %d bytes: Remark = %q, want a remark on alignment: %t",
					test.operation, test.count, test.recvOffset, remark, test.wantRemark)
			}
		}
		return nil
	})
}

func TestGroupWithoutWindowNamesItsReason(t *testing.T) {
	for machines, hint := range map[int]string{
		1: "symmem doctor", 2: "on 2 machines, because they need GIN",
	} {
		s := windowSupport{machines: machines}
		s.disable(3, "2.32.3")
		s.disable(4, "2.32.3") // must not replace rank 3
		for _, text := range []string{"NCCL 2.32.3", "rank 3", hint} {
			if !strings.Contains(s.noWindowsReason, text) {
				t.Errorf("on %d machines, the reason is %q, want one that contains %q", machines,
					s.noWindowsReason, text)
			}
		}
	}
}
