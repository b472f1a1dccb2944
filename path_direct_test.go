package symmem_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem"
	"symmem/driver"
)

// writeDirectTable writes a tuning table, which chooses paths by size, and returns its file.
// All-reduces take the direct path, which runs kernels of symmem, up to 16 KiB on symmetric
// buffers. On other buffers, the limit is 4 KiB. Otherwise, they take the window path up to 32 KiB.
// The plain path, which needs no registered memory, takes the rest.
func writeDirectTable(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "direct.json")
	text := `{"version": 4, "device": "box", "otherwise": "plain", "rules": [
		{"operation": "AllReduce", "ranks": 2, "machines": 1, "memory": "symmetric", "steps": [
			{"up_to": "16KiB", "path": "direct"}, {"path": "other"}]},
		{"memory": "any", "steps": [{"up_to": "4KiB", "path": "direct"}, {"path": "other"}]},
		{"operation": "AllReduce", "ranks": 2, "machines": 1, "steps": [
			{"up_to": "32KiB", "path": "window"}, {"path": "plain"}]}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	return file
}

// checkSmallExchange is the path check of a direct path that has no kernel for products and 8 KiB
// of exchange memory. Calls that do not fit into the exchange memory need windows.
func checkSmallExchange(call *driver.Call) error {
	const ranks, rank, exchangeBytes = 2, 0, 8 << 10
	sendBytes, _ := call.Spans(ranks, rank)
	hasWindows := call.SendWindow != nil && call.RecvWindow != nil
	switch {
	case call.ReduceOp == driver.Prod:
		return fmt.Errorf("no kernel for prod: %w", driver.ErrUnsupported)
	case sendBytes > exchangeBytes && !hasWindows:
		return fmt.Errorf("8KiB of exchange memory: %w", driver.ErrUnsupported)
	}

	return nil
}

// allowAll is the path check of a path that can take all calls.
func allowAll(*driver.Call) error { return nil }

// directRow describes an all-reduce on the table of writeDirectTable, and its expected path.
type directRow struct {
	name      string
	choice    symmem.PathChoice // of the call; zero is PathDefault, which follows the table
	inWindows bool              // both buffers are in windows, which are registered memory
	op        symmem.ReduceOp   // zero is Sum
	bytes     int64             // of the send buffer
	wantPath  string
	wantWhy   string // the reason for the path, in which TABLE stands for the name of the table
}

// Parts of the reasons for a path.
const (
	bothInWindows = "both buffers lie in windows of the group, "
	notInWindow   = "the send buffer is in no window of the group"
	tableSays     = "TABLE says "
	notSupported  = ": not supported by this backend"
)

var directRows = []directRow{
	{
		name:      "symmetric buffers up to the limit",
		inWindows: true, bytes: 16 << 10, wantPath: "direct",
		wantWhy: bothInWindows + "and " + tableSays +
			"direct up to 16KiB for AllReduce on 2 ranks, symmetric buffers",
	},
	{
		name:      "symmetric buffers above the limit take the best other path",
		inWindows: true, bytes: 32 << 10, wantPath: "window",
		wantWhy: bothInWindows + "and " + tableSays +
			"window up to 32KiB for AllReduce on 2 ranks; not direct: " + tableSays +
			"another path than direct above 16KiB for AllReduce on 2 ranks, symmetric buffers",
	},
	{
		name:  "any buffers have another limit",
		bytes: 4 << 10, wantPath: "direct",
		wantWhy: notInWindow + ", and " + tableSays +
			"direct up to 4KiB for all operations, any buffers",
	},
	{
		name:  "any buffers above that limit take the plain path",
		bytes: 5 << 10, wantPath: "plain",
		wantWhy: notInWindow + "; not direct: " + tableSays +
			"another path than direct above 4KiB for all operations, any buffers",
	},
	{
		name:      "a call without a kernel takes another path",
		inWindows: true, op: symmem.Prod, bytes: 4 << 10, wantPath: "window",
		wantWhy: bothInWindows + "and " + tableSays +
			"window up to 32KiB for AllReduce on 2 ranks; not direct: no kernel for prod" + notSupported,
	},
	{
		name:      "a call above the limit does not say that it has no kernel",
		inWindows: true, op: symmem.Prod, bytes: 32 << 10, wantPath: "window",
		wantWhy: bothInWindows + "and " + tableSays +
			"window up to 32KiB for AllReduce on 2 ranks",
	},
	{
		name:   "a call may ask for the direct path against the table",
		choice: symmem.PathDirect, inWindows: true, bytes: 64 << 10, wantPath: "direct",
		wantWhy: bothInWindows + "and the call asks for the direct path",
	},
	{
		name:   "a call may ask for the direct path on any buffers",
		choice: symmem.PathDirect, bytes: 8 << 10, wantPath: "direct",
		wantWhy: notInWindow + ", and the call asks for the direct path",
	},
	{
		name:   "an unavailable direct path is replaced as with PathAuto",
		choice: symmem.PathDirect, inWindows: true, op: symmem.Prod, bytes: 64 << 10,
		wantPath: "plain",
		wantWhy: bothInWindows + "but " + tableSays +
			"plain above 32KiB for AllReduce on 2 ranks; not direct: no kernel for prod" + notSupported,
	},
	{
		name:   "a request for the direct path that fails outside windows takes the plain path",
		choice: symmem.PathDirect, bytes: 16 << 10, wantPath: "plain",
		wantWhy: notInWindow + "; not direct: 8KiB of exchange memory" + notSupported,
	},
	{
		name:   "a call may ask for the window path",
		choice: symmem.PathWindow, inWindows: true, bytes: 4 << 10, wantPath: "window",
		wantWhy: bothInWindows + "and the call asks for the window path",
	},
	{
		name:   "a call may ask for the plain path",
		choice: symmem.PathPlain, inWindows: true, bytes: 4 << 10, wantPath: "plain",
		wantWhy: bothInWindows + "but the call asks for the plain path",
	},
	{
		name:   "an empty call takes the plain path",
		choice: symmem.PathDirect, inWindows: true, bytes: 0, wantPath: "plain",
		wantWhy: "the operation works without windows",
	},
}

// TestDirectPathIsPreferred checks the path of each row, and the reason that users read.
func TestDirectPathIsPreferred(t *testing.T) {
	file := writeDirectTable(t)
	runRanks(t, 2, symmem.Options{Tuning: file}, func(r *rank) {
		registered := r.window(r.pool(), 128<<10).Memory()
		unregistered := r.alloc(r.pool(), 128<<10).Memory()
		g := symmem.WithChecks(r.World(), allowAll, checkSmallExchange)
		for _, row := range directRows {
			m := unregistered
			if row.inWindows {
				m = registered
			}

			const elementBytes = 4
			path, why, _ := symmem.Route(g, symmem.Call{
				Type: symmem.Float32, Op: row.op, Count: row.bytes / elementBytes, Send: m, Recv: m,
				Path: row.choice,
			})
			wantWhy := strings.ReplaceAll(row.wantWhy, "TABLE", "the table "+file+" of box")
			if path != row.wantPath || why != wantWhy {
				r.failf("%s: got %s: %q, want %s: %q", row.name, path, why, row.wantPath, wantWhy)
			}
		}
	})
}

// TestBarriersPreferDirectPath checks that a barrier takes the direct path if the group has one and
// the call does not exclude it. The table must not matter. Messages must take the plain path.
func TestBarriersPreferDirectPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: writeDirectTable(t)}, func(r *rank) {
		var ownWindowCheck func(*driver.Call) error // nil keeps the check of the group's communicator
		withDirect := symmem.WithChecks(r.World(), ownWindowCheck, allowAll)
		withoutDirect := symmem.WithChecks(r.World(), ownWindowCheck, func(*driver.Call) error {
			return fmt.Errorf("a link is missing: %w", driver.ErrUnsupported)
		})
		const noWindows = "the operation works without windows"
		for _, row := range []struct {
			g                 *symmem.Group
			choice            symmem.PathChoice
			wantPath, wantWhy string
		}{
			{
				g: withDirect, choice: symmem.PathAuto, wantPath: "direct",
				wantWhy: noWindows + ", and barriers take the direct path whenever they can",
			},
			{
				g: withDirect, choice: symmem.PathDirect, wantPath: "direct",
				wantWhy: noWindows + ", and the call asks for the direct path",
			},
			{g: withDirect, choice: symmem.PathPlain, wantPath: "plain", wantWhy: noWindows},
			{g: withDirect, choice: symmem.PathWindow, wantPath: "plain", wantWhy: noWindows},
			{g: withoutDirect, choice: symmem.PathAuto, wantPath: "plain", wantWhy: noWindows},
			{
				g: withoutDirect, choice: symmem.PathDirect, wantPath: "plain",
				wantWhy: noWindows + "; not direct: a link is missing" + notSupported,
			},
		} {
			barrier := symmem.Call{Operation: symmem.OpBarrier, Path: row.choice}
			path, why, _ := symmem.Route(row.g, barrier)
			if path != row.wantPath || why != row.wantWhy {
				r.failf("barrier with %v: got %s: %q, want %s: %q", row.choice, path, why, row.wantPath,
					row.wantWhy)
			}

			const destination = 1
			message := symmem.Call{
				Operation: symmem.OpSend, Type: symmem.Uint8, Count: 1, Root: destination,
				Path: row.choice,
			}
			if path, _, _ := symmem.Route(row.g, message); path != "plain" {
				r.failf("message with %v: got the %s path, want plain", row.choice, path)
			}
		}
	})
}

// TestDirectPathComparesOffsetsInWindows checks the digests of calls, which ranks compare. Kernels
// find a peer's buffers in windows at this rank's offsets. So if both buffers are in windows, their
// offsets must be part of the digest. Otherwise, they must not, because they may differ by rank.
func TestDirectPathComparesOffsetsInWindows(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p, unregistered := r.pool(), r.pool()
		in1, in2 := r.window(p, 4096).Memory(), r.window(p, 4096).Memory()
		out1, out2 := r.alloc(unregistered, 4096).Memory(), r.alloc(unregistered, 4096).Memory()
		g := symmem.WithChecks(r.World(), allowAll, allowAll)
		digest := func(send, recv symmem.Memory) uint64 {
			path, _, compared := symmem.Route(g, symmem.Call{
				Type: symmem.Float32, Count: 64, Send: send, Recv: recv, Path: symmem.PathDirect,
			})
			if path != "direct" {
				r.failf("got the %s path, want direct", path)
			}

			return compared
		}
		if digest(in1, in2) == digest(in2, in1) {
			r.failf("exchanged buffers in windows have the same digest, want different digests")
		}

		if digest(in1, in2) == digest(in1, in1) {
			r.failf("different recv buffers in windows have the same digest, want different digests")
		}

		if digest(out1, out2) != digest(out2, out1) || digest(out1, out2) != digest(out1, out1) {
			r.failf("the digest depends on offsets outside windows, want the same digest")
		}

		if digest(in1, in2) == digest(out1, out2) {
			r.failf("calls in and outside windows have the same digest, want different digests")
		}

		if digest(in1, out1) != digest(out1, out2) {
			r.failf("the digest depends on the offset of send, want no effect: recv is not in a window")
		}
	})
}

// TestRegistrableMemoryTakesDirectPath checks that Explain describes the path of unregistered
// memory as it will be after a registration.
func TestRegistrableMemoryTakesDirectPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: writeDirectTable(t)}, func(r *rank) {
		g := symmem.WithChecks(r.World(), allowAll, checkSmallExchange)
		const count, elementBytes = 4096, 4 // 16 KiB, the limit of the direct path
		m := r.alloc(r.pool(), count*elementBytes).Memory()
		e, err := g.Explain(symmem.OpAllReduce, m, m, count, symmem.Float32)
		r.ok(err)
		want := "AllReduce: direct path, after registering: both buffers belong to pools that the " +
			"group can register, and the table "
		if got := e.String(); !strings.HasPrefix(got, want) {
			r.failf("got %q, want the prefix %q", got, want)
		}
	})
}

// TestForcedDirectPathFallsBack chooses the direct path for a group. On the host backend, which has
// none, calls must take the path of the table. On all backends, Explain must name the taken path.
func TestForcedDirectPathFallsBack(t *testing.T) {
	windowTable := tableOf(t, "1MiB") // chooses the window path up to 1 MiB
	o := symmem.Options{Tuning: windowTable, Path: symmem.PathDirect}
	runRanks(t, 2, o, func(r *rank) {
		const count, elementBytes = 16 << 10, 4
		b := r.window(r.pool(), count*elementBytes)
		if got := r.World().Stats().Tuning.Path; got != "direct" {
			r.failf("Stats().Tuning.Path = %s, want direct", got)
		}

		// A change back to the direct path must have the same effect as the option.
		r.ok(r.World().SetPath(r.ctx, symmem.PathPlain))
		r.ok(r.World().SetPath(r.ctx, symmem.PathDirect))
		path := r.takenPath(b) // all-reduces b
		why := r.explain(b, count)
		const reason = "; not direct: the host backend has no GPU kernels"
		if r.Device().Backend == "host" && (path != "window" || !strings.Contains(why, reason)) {
			r.failf("got the %s path: %q, want window and %q", path, why, reason)
		}

		if !strings.Contains(why, path+" path") {
			r.failf("the call took the %s path, but Explain gives %q", path, why)
		}
	})
}
