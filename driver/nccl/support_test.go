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

// A window is memory that is registered with NCCL. Some versions of NCCL have the defect
// nccl.EarlyStart: a kernel that uses windows may start before earlier work in its stream has
// ended. With them, symmem launches a guard (an empty kernel) before each window kernel. For
// example, NCCL 2.28.3 has the defect, and NCCL 2.28.2 does not.

// guardVersions lists versions of NCCL with and without the defect.
var guardVersions = []struct {
	code      string // 22803 is NCCL 2.28.3
	wantGuard bool
}{
	{code: "22703", wantGuard: false},
	{code: "22802", wantGuard: false},
	{code: "22803", wantGuard: true},
	{code: "22809", wantGuard: true},
	{code: "23006", wantGuard: true},
	{code: "23007", wantGuard: false},
	{code: "23203", wantGuard: false},
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
// only if NCCL has the defect.
func TestWindowKernelsWaitForEarlierWork(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	needsGuard := w.opened[0].device.hasEarlyStart()
	if needsGuard {
		t.Log(guardLog)
	}

	w.must(func(m *testRank) error {
		s, err := m.mapRegion(1 << 20)
		if err != nil {
			return err
		}

		if err := m.group.(driver.LazyWindows).UseWindows(t.Context()); err != nil {
			return err
		}

		if err := m.register(w, s, windowName); err != nil {
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

// checkGuard prepares and launches the call on the window path and on the plain path. It must have
// a guard only on the window path, and only if needsGuard is set.
func (m *testRank) checkGuard(w *testGroup, call driver.Call, needsGuard bool) error {
	for _, path := range []driver.Path{driver.PathWindow, driver.PathPlain} {
		wantGuard := needsGuard && path == driver.PathWindow
		offer := m.group.Offer(call)
		remark := offer.(driver.Remarker).Remark(path)
		hasRemark := strings.Contains(remark, "an empty kernel is launched before it")
		if hasRemark != wantGuard {
			w.t.Errorf("%v path: Remark = %q, want a mention of an empty kernel: %t", path, remark,
				wantGuard)
		}

		const digest = 0 // any number, the same on all ranks
		prepared, err := offer.Take(path, digest)
		if err != nil {
			return err
		}

		p := prepared.(*plan)
		checkGuardOfPlan(w.t, p, path, wantGuard)
		if err := m.group.Launch(m.stream, p); err != nil {
			return err
		}
	}

	return m.stream.Synchronize(w.t.Context())
}

// checkGuardOfPlan checks whether plan p has a guard. A plan has prepared guardedCall if it has
// one, and singleCall if it has none.
func checkGuardOfPlan(t *testing.T, p *plan, path driver.Path, wantGuard bool) {
	t.Helper()
	if hasGuard := p.guard != nil; hasGuard != wantGuard {
		t.Errorf("%v path: the plan has an empty kernel: %t, want %t", path, hasGuard, wantGuard)
	}

	if isPrepared := p.guardedCall.Prepared(); isPrepared != wantGuard {
		t.Errorf("%v path: guardedCall is prepared: %t, want %t", path, isPrepared, wantGuard)
	}

	wantSingle := !wantGuard
	if isPrepared := p.singleCall.Prepared(); isPrepared != wantSingle {
		t.Errorf("%v path: singleCall is prepared: %t, want %t", path, isPrepared, wantSingle)
	}
}

// TestCommunicatorWithEarlyStartIsNotAdopted checks that AdoptCommunicator, which takes another
// library's communicator, refuses an NCCL with the defect unless allowEarlyStartVariable is set.
func TestCommunicatorWithEarlyStartIsNotAdopted(t *testing.T) {
	w := newGroup(t, 1, 10*time.Second)
	m := w.opened[0]
	if !m.device.hasEarlyStart() {
		t.Skipf("this NCCL does not have the defect EarlyStart: %v", driver.ErrUnsupported)
	}

	const unusedHandle = 1 // any handle but 0: AdoptCommunicator must fail before it is used
	_, err := m.device.AdoptCommunicator(unusedHandle)
	fixedVersion := nccl.VersionText(nccl.EarlyStart.FixedIn)
	isRefused := errors.Is(err, driver.ErrUnsupported)
	if !isRefused || !strings.Contains(err.Error(), fixedVersion) {
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

// alignmentTest is a call with buffers of 4-byte elements. Send begins at a multiple of 16 bytes.
type alignmentTest struct {
	name       string
	operation  driver.Operation
	count      int64   // in elements
	recvOffset uintptr // bytes by which Recv begins after a multiple of 16 bytes
	wantRemark bool
}

// alignmentTests lists calls with and without a remark. With 4<<20+1 elements in a part, the part
// of rank 1 begins 4 bytes after a multiple of 16.
var alignmentTests = []alignmentTest{
	{
		name: "aligned", operation: driver.AllReduce, count: 8 << 20,
		recvOffset: 0, wantRemark: false,
	},
	{
		name: "equal offsets modulo 16", operation: driver.AllReduce, count: 8 << 20,
		recvOffset: 16, wantRemark: false,
	},
	{
		name: "misaligned", operation: driver.AllReduce, count: 8 << 20,
		recvOffset: 4, wantRemark: true,
	},
	{ // line kernels are for small calls
		name: "misaligned, with a line kernel", operation: driver.AllReduce, count: 1 << 10,
		recvOffset: 4, wantRemark: false,
	},
	{
		name: "misaligned part of rank 1", operation: driver.ReduceScatter, count: 4<<20 + 1,
		recvOffset: 0, wantRemark: true,
	},
	{
		name: "aligned parts", operation: driver.ReduceScatter, count: 4 << 20,
		recvOffset: 0, wantRemark: false,
	},
}

// TestRemarkOnMisalignedBuffers checks that a large call gets a remark if its buffers, or the
// parts of the ranks in a buffer, have different offsets modulo 16 bytes.
func TestRemarkOnMisalignedBuffers(t *testing.T) {
	const bufferBytes = 48 << 20 // room for Send, and the same for Recv
	w := newGroup(t, 2, 10*time.Second)
	needDirect(t, w.opened[0].group)
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(2 * bufferBytes)
		if err != nil {
			return err
		}

		if err := m.register(w, s, windowName); err != nil {
			return err
		}

		base := s.segment.Address()
		for _, test := range alignmentTests {
			remark := m.group.Offer(driver.Call{
				Operation: test.operation, DataType: driver.Float32, Count: test.count,
				Send: base, Recv: base + bufferBytes + test.recvOffset,
				SendWindow: s.window, RecvWindow: s.window,
			}).(driver.Remarker).Remark(driver.PathDirect)
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
		wantHint string // what a user can do
	}{
		{machines: 1, wantHint: "symmem doctor"},
		{machines: 2, wantHint: "on 2 machines, because they need GIN"},
	} {
		s := windowSupport{machines: test.machines}
		const version = "2.32.3"
		s.disable(3, version)
		s.disable(4, version) // must not replace rank 3
		for _, text := range []string{"NCCL " + version, "rank 3", test.wantHint} {
			if !strings.Contains(s.noWindowsReason, text) {
				t.Errorf("on %d machines, the reason is %q, want one that contains %q", test.machines,
					s.noWindowsReason, text)
			}
		}
	}
}
