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

// writeDirectTable writes a tuning table and returns its file. All-reduces take the direct path up
// to 16 KiB on symmetric buffers and up to 4 KiB on others, and the window path up to 32 KiB.
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

// directRow describes a call on the table of writeDirectTable, and its expected path.
type directRow struct {
	name      string
	choice    symmem.PathChoice
	inWindows bool // both buffers are in windows
	op        symmem.ReduceOp
	bytes     int64
	path, why string // in why, TABLE stands for the name of the table
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
		"symmetric buffers up to the limit", symmem.PathDefault, true, symmem.Sum, 16 << 10, "direct",
		bothInWindows + "and " + tableSays +
			"direct up to 16KiB for AllReduce on 2 ranks, symmetric buffers",
	},
	{
		"symmetric buffers above the limit take the best other path",
		symmem.PathDefault, true, symmem.Sum, 32 << 10, "window",
		bothInWindows + "and " + tableSays + "window up to 32KiB for AllReduce on 2 ranks; not direct: " +
			tableSays + "another path than direct above 16KiB for AllReduce on 2 ranks, symmetric buffers",
	},
	{
		"any buffers have another limit", symmem.PathDefault, false, symmem.Sum, 4 << 10,
		"direct", notInWindow + ", and " + tableSays +
			"direct up to 4KiB for all operations, any buffers",
	},
	{
		"any buffers above that limit take the plain path", symmem.PathDefault, false, symmem.Sum,
		5 << 10, "plain", notInWindow + "; not direct: " + tableSays +
			"another path than direct above 4KiB for all operations, any buffers",
	},
	{
		"a call without a kernel takes another path", symmem.PathDefault, true,
		symmem.Prod, 4 << 10, "window", bothInWindows + "and " + tableSays +
			"window up to 32KiB for AllReduce on 2 ranks; not direct: no kernel for prod" + notSupported,
	},
	{
		"a call without a kernel above the limit gives no reason", symmem.PathDefault, true,
		symmem.Prod, 32 << 10, "window",
		bothInWindows + "and " + tableSays + "window up to 32KiB for AllReduce on 2 ranks",
	},
	{
		"a call may ask for the direct path against the table", symmem.PathDirect, true, symmem.Sum,
		64 << 10, "direct", bothInWindows + "and the call asks for the direct path",
	},
	{
		"a call may ask for the direct path on any buffers", symmem.PathDirect, false, symmem.Sum,
		8 << 10, "direct", notInWindow + ", and the call asks for the direct path",
	},
	{
		"an unavailable direct path is replaced as with PathAuto", symmem.PathDirect, true,
		symmem.Prod, 64 << 10, "plain", bothInWindows + "but " + tableSays +
			"plain above 32KiB for AllReduce on 2 ranks; not direct: no kernel for prod" + notSupported,
	},
	{
		"a request for the direct path that fails outside windows takes the plain path",
		symmem.PathDirect, false, symmem.Sum, 16 << 10,
		"plain", notInWindow + "; not direct: 8KiB of exchange memory" + notSupported,
	},
	{
		"a call may ask for the window path", symmem.PathWindow, true, symmem.Sum, 4 << 10, "window",
		bothInWindows + "and the call asks for the window path",
	},
	{
		"a call may ask for the plain path", symmem.PathPlain, true, symmem.Sum, 4 << 10, "plain",
		bothInWindows + "but the call asks for the plain path",
	},
	{
		"an empty call takes the plain path", symmem.PathDirect, true, symmem.Sum, 0, "plain",
		"the operation works without windows",
	},
}

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
			path, why, _ := symmem.Route(g, symmem.Call{
				Type: symmem.Float32, Op: row.op, Count: row.bytes / 4, Send: m, Recv: m,
				Path: row.choice,
			})
			want := strings.ReplaceAll(row.why, "TABLE", "the table "+file+" of box")
			if path != row.path || why != want {
				r.failf("%s: got %s: %q, want %s: %q", row.name, path, why, row.path, want)
			}
		}
	})
}

func TestBarriersPreferDirectPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: writeDirectTable(t)}, func(r *rank) {
		withDirect := symmem.WithChecks(r.World(), nil, allowAll)
		withoutDirect := symmem.WithChecks(r.World(), nil, func(*driver.Call) error {
			return fmt.Errorf("a link is missing: %w", driver.ErrUnsupported)
		})
		const noWindows = "the operation works without windows"
		for _, row := range []struct {
			g         *symmem.Group
			choice    symmem.PathChoice
			path, why string
		}{
			{
				withDirect, symmem.PathAuto, "direct",
				noWindows + ", and barriers take the direct path whenever they can",
			},
			{
				withDirect, symmem.PathDirect, "direct",
				noWindows + ", and the call asks for the direct path",
			},
			{withDirect, symmem.PathPlain, "plain", noWindows},
			{withDirect, symmem.PathWindow, "plain", noWindows},
			{withoutDirect, symmem.PathAuto, "plain", noWindows},
			{
				withoutDirect, symmem.PathDirect, "plain",
				noWindows + "; not direct: a link is missing" + notSupported,
			},
		} {
			barrier := symmem.Call{Operation: symmem.OpBarrier, Path: row.choice}
			if path, why, _ := symmem.Route(row.g, barrier); path != row.path || why != row.why {
				r.failf("%v: got %s: %q, want %s: %q", row.choice, path, why, row.path, row.why)
			}
			message := symmem.Call{
				Operation: symmem.OpSend, Type: symmem.Uint8, Count: 1, Root: 1, Path: row.choice,
			}
			if path, _, _ := symmem.Route(row.g, message); path != "plain" {
				r.failf("%v: got the %s path for a message, want plain", row.choice, path)
			}
		}
	})
}

// TestDirectPathComparesOffsetsInWindows checks the digests of calls, which ranks compare. If both
// buffers are in windows, their offsets must be part of the digest. Otherwise, they must not.
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
		if digest(in1, in2) == digest(in2, in1) || digest(in1, in2) == digest(in1, in1) {
			r.failf("buffers at different places in windows have the same digest, want different digests")
		}
		if digest(out1, out2) != digest(out2, out1) || digest(out1, out2) != digest(out1, out1) {
			r.failf("the digest depends on offsets outside windows")
		}
		if digest(in1, in2) == digest(out1, out2) {
			r.failf("calls in and outside windows have the same digest, want different digests")
		}
		if digest(in1, out1) != digest(out1, out2) {
			r.failf("the digest depends on the offset of send, but recv is not in a window")
		}
	})
}

func TestRegistrableMemoryTakesDirectPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: writeDirectTable(t)}, func(r *rank) {
		g := symmem.WithChecks(r.World(), allowAll, checkSmallExchange)
		m := r.alloc(r.pool(), 16<<10).Memory()
		e, err := g.Explain(symmem.OpAllReduce, m, m, 4096, symmem.Float32)
		r.ok(err)
		want := "AllReduce: direct path, after registering: both buffers belong to pools that the " +
			"group can register, and the table "
		if got := e.String(); !strings.HasPrefix(got, want) {
			r.failf("got %q, want the prefix %q", got, want)
		}
	})
}

func TestForcedDirectPathFallsBack(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: tableOf(t, "1MiB"), Path: symmem.PathDirect}, func(r *rank) {
		b := r.window(r.pool(), 64<<10)
		if got := r.World().Stats().Tuning.Path; got != "direct" {
			r.failf("Stats().Tuning.Path = %s, want direct", got)
		}
		r.ok(r.World().SetPath(r.ctx, symmem.PathPlain))
		r.ok(r.World().SetPath(r.ctx, symmem.PathDirect))
		path, why := r.takenPath(b), r.explain(b, 16<<10)
		const reason = "; not direct: the host backend has no GPU kernels"
		if r.Device().Backend == "host" && (path != "window" || !strings.Contains(why, reason)) {
			r.failf("got the %s path: %q, want window and %q", path, why, reason)
		}
		if !strings.Contains(why, path+" path") {
			r.failf("the call took the %s path, but Explain gives %q", path, why)
		}
	})
}
