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

// guardVersions lists versions of NCCL with and without the defect nccl.EarlyStart: a kernel on the
// window path may start before earlier work in its stream has ended. As a guard, symmem launches an
// empty kernel before such kernels.
var guardVersions = []struct {
	code      string // 22803 means NCCL 2.28.3
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

// If NCCL has the defect, calls on the window path have a guard, and other calls have none.
func TestWindowKernelsWaitForEarlierWork(t *testing.T) {
	g := newGroup(t, 2, 10*time.Second)
	needsGuard := g.opened[0].device.hasEarlyStart()
	if needsGuard {
		t.Log(guardLog)
	}

	g.must(func(r *testRank) error {
		const count = 1 << 10
		buffer, err := r.mapRegion(4 * count)
		if err != nil {
			return err
		}

		if err := r.group.(driver.LazyWindows).UseWindows(t.Context()); err != nil {
			return err
		}

		if err := r.register(g, buffer, windowName); err != nil {
			return err
		}

		call := driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float32, Count: count,
			Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
			SendWindow: buffer.window, RecvWindow: buffer.window, Path: driver.PathWindow,
		}
		return r.checkGuard(g, call, needsGuard)
	})
}

// checkGuard launches the call on the window path, with a guard if needsGuard is set, and on the
// plain path, without a guard.
func (r *testRank) checkGuard(g *testGroup, call driver.Call, needsGuard bool) error {
	for _, path := range []driver.Path{driver.PathWindow, driver.PathPlain} {
		wantGuard := needsGuard && path == driver.PathWindow
		offer := r.group.Offer(call)
		remark := offer.(driver.Remarker).Remark(path)
		hasRemark := strings.Contains(remark, "an empty kernel is launched before it")
		if hasRemark != wantGuard {
			g.t.Errorf("%v path: Remark = %q, want a mention of an empty kernel: %t", path, remark,
				wantGuard)
		}

		const anyDigest = 0
		prepared, err := offer.Take(path, anyDigest)
		if err != nil {
			return err
		}

		p := prepared.(*plan)
		checkGuardOfPlan(g.t, p, path, wantGuard)
		if err := r.group.Launch(r.stream, p); err != nil {
			return err
		}
	}

	return r.stream.Synchronize(g.t.Context())
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

// AdoptCommunicator refuses a communicator of another library if NCCL has the defect, unless the
// environment variable allowEarlyStartVariable is set.
func TestCommunicatorWithEarlyStartIsNotAdopted(t *testing.T) {
	g := newGroup(t, 1, 10*time.Second)
	r := g.opened[0]
	if !r.device.hasEarlyStart() {
		t.Skipf("this NCCL does not have the defect EarlyStart: %v", driver.ErrUnsupported)
	}

	const unusedHandle = 1
	_, err := r.device.AdoptCommunicator(unusedHandle)
	fixedVersion := nccl.VersionText(nccl.EarlyStart.FixedIn)
	isRefused := errors.Is(err, driver.ErrUnsupported)
	if !isRefused || !strings.Contains(err.Error(), fixedVersion) {
		t.Errorf("AdoptCommunicator = %v, want ErrUnsupported that mentions NCCL %s", err, fixedVersion)
	}

	t.Setenv(allowEarlyStartVariable, "1")
	adopted, err := r.device.AdoptCommunicator(uintptr(r.group.(*communicator).comm.handle))
	if err != nil {
		t.Errorf("AdoptCommunicator with %s=1: %v", allowEarlyStartVariable, err)
	} else if adopted.Size() != 1 {
		t.Errorf("AdoptCommunicator with %s=1 returned a communicator of %d ranks, want 1",
			allowEarlyStartVariable, adopted.Size())
	}
}

// alignmentTests lists calls with elements of 4 bytes. All Send buffers are aligned to 16 bytes.
var alignmentTests = []struct {
	name       string
	operation  driver.Operation
	count      int64   // elements of Recv
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
	const bufferBytes = 48 << 20 // enough for each Send and Recv
	g := newGroup(t, 2, 10*time.Second)
	needDirect(t, g.opened[0].group)
	g.must(func(r *testRank) error {
		buffers, err := r.mapRegion(2 * bufferBytes)
		if err != nil {
			return err
		}

		if err := r.register(g, buffers, windowName); err != nil {
			return err
		}

		send := buffers.segment.Address()
		recv := send + bufferBytes
		for _, test := range alignmentTests {
			offer := r.group.Offer(driver.Call{
				Operation: test.operation, DataType: driver.Float32, Count: test.count,
				Send: send, Recv: recv + test.recvOffset,
				SendWindow: buffers.window, RecvWindow: buffers.window,
			})
			remark := offer.(driver.Remarker).Remark(driver.PathDirect)
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

// The reason why a group has no windows names the first such rank, its NCCL version and a remedy.
func TestGroupWithoutWindowNamesItsReason(t *testing.T) {
	for _, test := range []struct {
		machines int
		wantHint string
	}{
		{machines: 1, wantHint: "symmem doctor"},
		{machines: 2, wantHint: "on 2 machines, because they need GIN"},
	} {
		support := windowSupport{machines: test.machines}
		const version = "2.32.3"
		for _, rank := range []int{3, 4} {
			support.disable(rank, version)
		}

		for _, text := range []string{"NCCL " + version, "rank 3", test.wantHint} {
			if !strings.Contains(support.noWindowsReason, text) {
				t.Errorf("on %d machines, the reason is %q, want one that contains %q", test.machines,
					support.noWindowsReason, text)
			}
		}
	}
}
