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

// guardVersions lists versions of NCCL with and without the defect nccl.EarlyStart: a window
// kernel, which uses memory registered with NCCL, may start before earlier work in its stream ends.
// As a guard, symmem launches an empty kernel before each window kernel.
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

// guardLog is logged by TestWindowKernelsWaitForEarlierWork if NCCL has the defect.
const guardLog = "an empty kernel is launched before window kernels"

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

// Only calls on the window path have a guard, and only if NCCL has the defect.
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

		call := driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float32, Count: 1 << 10,
			Send: s.segment.Address(), Recv: s.segment.Address(), SendWindow: s.window,
			RecvWindow: s.window, Path: driver.PathWindow,
		}
		return m.checkGuard(w, call, needsGuard)
	})
}

// checkGuard launches the call on the window path, where needsGuard says whether it has a guard,
// and on the plain path, where it has none.
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

		const anyDigest = 0
		prepared, err := offer.Take(path, anyDigest)
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

// AdoptCommunicator, which uses another library's communicator, refuses an NCCL with the defect
// unless allowEarlyStartVariable is set.
func TestCommunicatorWithEarlyStartIsNotAdopted(t *testing.T) {
	w := newGroup(t, 1, 10*time.Second)
	m := w.opened[0]
	if !m.device.hasEarlyStart() {
		t.Skipf("this NCCL does not have the defect EarlyStart: %v", driver.ErrUnsupported)
	}

	const unusedHandle = 1
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

// alignmentTests lists calls with 4-byte elements. Send is aligned to 16 bytes.
var alignmentTests = []struct {
	name       string
	operation  driver.Operation
	count      int64   // elements of a buffer or, for a ReduceScatter, of a rank's part
	recvOffset uintptr // bytes from an aligned address to Recv
	wantRemark bool
}{
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
	{
		name: "misaligned, too small for a remark", operation: driver.AllReduce, count: 1 << 10,
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

// A large call gets a remark if its buffers, or the ranks' parts of a buffer, have different
// offsets modulo 16 bytes.
func TestRemarkOnMisalignedBuffers(t *testing.T) {
	const bufferBytes = 48 << 20 // room for Send or Recv
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

// The reason why a group has no windows names the first rank without them and its NCCL version, and
// tells users what to do.
func TestGroupWithoutWindowNamesItsReason(t *testing.T) {
	for _, test := range []struct {
		machines int
		wantHint string
	}{
		{machines: 1, wantHint: "symmem doctor"},
		{machines: 2, wantHint: "on 2 machines, because they need GIN"},
	} {
		s := windowSupport{machines: test.machines}
		const version = "2.32.3"
		s.disable(3, version)
		s.disable(4, version)
		for _, text := range []string{"NCCL " + version, "rank 3", test.wantHint} {
			if !strings.Contains(s.noWindowsReason, text) {
				t.Errorf("on %d machines, the reason is %q, want one that contains %q", test.machines,
					s.noWindowsReason, text)
			}
		}
	}
}
