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

// guardVersions lists version codes of NCCL with and without the defect nccl.EarlyStart. With this
// defect, window kernels may start before earlier work in the stream has ended. symmem therefore
// launches a guard (an empty kernel) before them.
var guardVersions = []struct {
	code      string // 22803 is NCCL 2.28.3
	wantGuard bool
}{
	{"22703", false},
	{"22802", false},
	{"22803", true},
	{"22809", true},
	{"23006", true},
	{"23007", false},
	{"23203", false},
}

// guardLog is logged by TestWindowKernelsWaitForEarlierWork if it expects a guard.
const guardLog = "an empty kernel is launched before window kernels"

// TestGuardForKernelsThatStartEarly runs TestWindowKernelsWaitForEarlierWork with several versions
// of NCCL.
func TestGuardForKernelsThatStartEarly(t *testing.T) {
	requireSoftGPU(t, "has a configurable version of NCCL")
	for _, version := range guardVersions {
		t.Run(version.code, func(t *testing.T) {
			c := systest.Command(t, systest.Patience, os.Args[0], "-test.v",
				"-test.run=^TestWindowKernelsWaitForEarlierWork$")
			c.Env = append(os.Environ(), "SOFTGPU_NCCL="+version.code)
			output, err := c.CombinedOutput()
			if err != nil {
				t.Errorf("the child process failed: %v\n%s", err, output)
			}

			hasGuard := strings.Contains(string(output), guardLog)
			if hasGuard != version.wantGuard {
				t.Errorf("the output mentions a guard: %t, want %t; output:\n%s", hasGuard,
					version.wantGuard, output)
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
			err = m.register(w, s, windowName)
		}

		if err != nil {
			return err
		}

		call := driver.Call{ // in place
			Operation: driver.AllReduce, DataType: driver.Float32, Count: 1 << 10,
			Send: s.segment.Address(), Recv: s.segment.Address(), SendWindow: s.window,
			RecvWindow: s.window, Path: driver.PathWindow,
		}
		return m.checkGuard(w, call, needsGuard)
	})
}

// checkGuard prepares and launches the call on the window path and on the plain path. On the
// window path, the plan must have a guard, and the remark must mention it, if and only if
// needsGuard is set. On the plain path, there must be no guard.
func (m *testRank) checkGuard(w *testGroup, call driver.Call, needsGuard bool) error {
	for _, path := range []driver.Path{driver.PathWindow, driver.PathPlain} {
		offer := m.group.Offer(call)
		remark := offer.(driver.Remarker).Remark(path)
		const digest = 0 // any number, the same on all ranks
		prepared, err := offer.Take(path, digest)
		if err != nil {
			return err
		}

		p := prepared.(*plan)
		wantGuard := needsGuard && path == driver.PathWindow
		if hasGuard := p.guard != nil; hasGuard != wantGuard {
			w.t.Errorf("%v path: the plan has an empty kernel: %t, want %t", path, hasGuard, wantGuard)
		}

		// A plan has prepared either a call with a guard or a call without one.
		if isPrepared := p.guardedCall.Prepared(); isPrepared != wantGuard {
			w.t.Errorf("%v path: guardedCall is prepared: %t, want %t", path, isPrepared, wantGuard)
		}

		if isPrepared := p.singleCall.Prepared(); isPrepared == wantGuard {
			w.t.Errorf("%v path: singleCall is prepared: %t, want %t", path, isPrepared, !wantGuard)
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
	if err != nil {
		t.Errorf("AdoptCommunicator with %s=1: %v", allowEarlyStartVariable, err)
	} else if adopted.Size() != 1 {
		t.Errorf("AdoptCommunicator with %s=1 returned a communicator of %d ranks, want 1",
			allowEarlyStartVariable, adopted.Size())
	}
}

// TestRemarkOnMisalignedBuffers checks that a large call gets a remark if its buffers, or the
// parts of the ranks in a buffer, have different offsets modulo 16 bytes.
func TestRemarkOnMisalignedBuffers(t *testing.T) {
	const bufferBytes = 48 << 20 // room for Send, and the same for Recv
	w := newGroup(t, 2, 10*time.Second)
	needDirect(t, w.opened[0].group)
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(2 * bufferBytes)
		if err == nil {
			err = m.register(w, s, windowName)
		}

		if err != nil {
			return err
		}

		base := s.segment.Address()
		for _, test := range []struct {
			name       string
			operation  driver.Operation
			count      int64   // of elements of 4 bytes
			recvOffset uintptr // bytes added to the address of Recv
			wantRemark bool
		}{
			{"aligned", driver.AllReduce, 8 << 20, 0, false},
			{"equal offsets modulo 16", driver.AllReduce, 8 << 20, 16, false},
			{"misaligned", driver.AllReduce, 8 << 20, 4, true},
			{"misaligned, with a line kernel", driver.AllReduce, 1 << 10, 4, false},
			{"misaligned part of rank 1", driver.ReduceScatter, 4<<20 + 1, 0, true},
			{"aligned parts", driver.ReduceScatter, 4 << 20, 0, false},
		} {
			call := driver.Call{
				Operation: test.operation, DataType: driver.Float32, Count: test.count,
				Send: base, Recv: base + bufferBytes + test.recvOffset,
				SendWindow: s.window, RecvWindow: s.window,
			}
			remark := m.group.Offer(call).(driver.Remarker).Remark(driver.PathDirect)
			hasRemark := strings.Contains(remark, "different offsets modulo 16 bytes")
			if hasRemark != test.wantRemark {
				t.Errorf("%s: %v of %d, Recv offset by %d bytes: Remark = %q, want a remark on "+
					"alignment: %t", test.name, test.operation, test.count, test.recvOffset, remark,
					test.wantRemark)
			}
		}

		return nil
	})
}

// TestGroupWithoutWindowNamesItsReason makes two ranks report that they have no windows. The
// reason must name the first of them, its version of NCCL, and what a user can do.
func TestGroupWithoutWindowNamesItsReason(t *testing.T) {
	for _, test := range []struct {
		machines int
		wantHint string
	}{
		{1, "symmem doctor"},
		{2, "on 2 machines, because they need GIN"},
	} {
		s := windowSupport{machines: test.machines}
		s.disable(3, "2.32.3")
		s.disable(4, "2.32.3") // must not replace rank 3
		for _, text := range []string{"NCCL 2.32.3", "rank 3", test.wantHint} {
			if !strings.Contains(s.noWindowsReason, text) {
				t.Errorf("on %d machines, the reason is %q, want one that contains %q", test.machines,
					s.noWindowsReason, text)
			}
		}
	}
}
