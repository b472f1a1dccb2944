package symmem_test

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem"
	"symmem/driver"
	"symmem/internal/ranktest"
)

// tableOf writes a tuning table to a file and returns the file's name. All-reduces up to the size
// upTo take the window path.
func tableOf(t *testing.T, upTo string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "table.json")
	writeTable(t, file, upTo)
	return file
}

// writeTable writes a tuning table to a file. All-reduces up to the size upTo take the window path.
func writeTable(t *testing.T, file, upTo string) {
	t.Helper()
	text := fmt.Sprintf(`{"version": 4, "device": "box", "otherwise": "plain", "rules": [
		{"operation": "AllReduce", "ranks": 2, "machines": 1, "steps": [
			{"up_to": %q, "path": "window"}, {"path": "plain"}]}]}`, upTo)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *rank) explain(b symmem.Buffer, count int64) string {
	r.t.Helper()
	m := b.Memory()
	e, err := r.World().Explain(symmem.OpAllReduce, m, m, count, symmem.Float32)
	r.ok(err)
	return e.String()
}

// withoutDirect removes the last part of an explanation, which states why a call does not take the
// direct path.
func withoutDirect(text string) string {
	text, _, _ = strings.Cut(text, "; not direct: ")
	return text
}

func (r *rank) takenPath(b symmem.Buffer) string {
	r.t.Helper()
	before := r.World().Stats().Paths
	r.checkSum(r.World(), b)
	for path, n := range r.World().Stats().Paths {
		if n > before[path] {
			return path
		}
	}

	return "none"
}

func TestPathsFollowTuningTable(t *testing.T) {
	file := tableOf(t, "16KiB")
	runRanks(t, 2, symmem.Options{Tuning: file}, func(r *rank) {
		p := r.pool()
		small, large := r.window(p, 16<<10), r.window(p, 64<<10)
		if a, b := r.takenPath(small), r.takenPath(large); a != "window" || b != "plain" {
			r.failf("16 KiB took the %s path and 64 KiB the %s path, want window and plain", a, b)
		}

		if a, b := r.takenPath(large), r.takenPath(small); a != "plain" || b != "window" {
			r.failf("second calls: 64 KiB took the %s path and 16 KiB the %s path, want plain and window",
				a, b)
		}

		for count, want := range map[int64]string{
			4096: "window path: both buffers lie in windows of the group, and the table " + file +
				" of box says window up to 16KiB for AllReduce on 2 ranks",
			4097: "plain path: both buffers lie in windows of the group, but the table " + file +
				" of box says plain above 16KiB for AllReduce on 2 ranks",
		} {
			if got := withoutDirect(r.explain(large, count)); got != "AllReduce: "+want {
				r.failf("%d elements: got %q, want %q", count, got, want)
			}
		}

		m := large.Memory()
		e, err := r.World().Explain(symmem.OpAllGather, m, m, 0, symmem.Float32)
		r.ok(err)
		if e.Why != "the operation works without windows" {
			r.failf("empty all-gather: Why = %q, want that it works without windows", e.Why)
		}

		s := r.World().Stats().Tuning
		if !strings.Contains(s.Table, file) || len(s.Digest) != 16 || s.Path != "auto" ||
			s.Machines != 1 {
			r.failf("got %+v, want the table %s, path auto and 1 machine", s, file)
		}
	})
}

func TestTuningTableUsesLargerBuffer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "table.json")
	err := os.WriteFile(file, []byte(`{"version": 4, "device": "box", "otherwise": "plain", "rules": [
		{"operation": "AllGather", "ranks": 2, "machines": 1, "steps": [
			{"up_to": "8KiB", "path": "plain"}, {"path": "window"}]}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}

	runRanks(t, 2, symmem.Options{Tuning: file}, func(r *rank) {
		p := r.pool()
		send, recv := r.window(p, 64<<10).Memory(), r.window(p, 64<<10).Memory()
		for count, want := range map[int64]string{1024: "plain", 1025: "window"} {
			e, err := r.World().Explain(symmem.OpAllGather, send, recv, count, symmem.Float32)
			r.ok(err)
			if e.Path != want {
				r.failf("%d elements: got the %s path (%s), want %s", count, e.Path, e.Why, want)
			}
		}
	})
}

func TestExplainUsesTableForRegistrableMemory(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: tableOf(t, "4KiB")}, func(r *rank) {
		got := r.explain(r.alloc(r.pool(), 64<<10), 16<<10)
		want := "plain path, after registering: both buffers belong to pools that the group can register"
		if !strings.Contains(got, want) || !strings.Contains(got, "says plain above 4KiB") {
			r.failf("got %q, want %q", got, want)
		}
	})
}

func TestForcedPathOverridesTable(t *testing.T) {
	for _, row := range []struct {
		path symmem.PathChoice
		want string
		why  string
	}{
		{symmem.PathPlain, "plain", "but the group is set to the plain path"},
		{symmem.PathWindow, "window", "and the group is set to the window path"},
		{symmem.PathAuto, "plain", "says plain above 4KiB"},
	} {
		t.Run(row.path.String(), func(t *testing.T) {
			o := symmem.Options{Tuning: tableOf(t, "4KiB"), Path: row.path}
			runRanks(t, 2, o, func(r *rank) {
				b := r.window(r.pool(), 64<<10)
				if got := r.takenPath(b); got != row.want {
					r.failf("got the %s path, want %s", got, row.want)
				}

				if got := r.explain(b, 16<<10); !strings.Contains(got, row.why) {
					r.failf("got explanation %q, want one that contains %q", got, row.why)
				}
			})
		})
	}
}

func TestSetPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: tableOf(t, "1MiB")}, func(r *rank) {
		b := r.window(r.pool(), 64<<10)
		for _, c := range []symmem.PathChoice{
			symmem.PathPlain, symmem.PathWindow, symmem.PathPlain, symmem.PathAuto,
		} {
			want := strings.Replace(c.String(), "auto", "window", 1)
			r.ok(r.World().SetPath(r.ctx, c))
			if got := r.takenPath(b); got != want {
				r.failf("after SetPath(%v) a call took the %s path, want %s", c, got, want)
			}

			if got := r.World().Stats().Tuning.Path; got != c.String() {
				r.failf("after SetPath(%v), Stats().Tuning.Path = %s, want %v", c, got, c)
			}
		}

		r.wantErr(r.World().SetPath(r.ctx, symmem.PathDefault), symmem.ErrInvalid)
		r.wantErr(r.World().SetPath(r.ctx, 17), symmem.ErrInvalid)
	})
}

// TestSetPathFailsDuringCapture calls SetPath while one rank captures. Calls with cached plans and
// with new plans must then still take the old path.
func TestSetPathFailsDuringCapture(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		cached, fresh := r.window(p, 64<<10), r.window(p, 64<<10)
		want := r.takenPath(cached)
		s := r.stream()
		if r.Rank() == 1 {
			r.ok(s.BeginCapture())
		}

		r.wantErr(r.World().SetPath(r.ctx, symmem.PathPlain), symmem.ErrCapturing)
		if r.Rank() == 1 {
			graph, err := s.EndCapture()
			r.ok(err)
			r.ok(graph.Close())
			symmem.ForgetPlans(r.World()) // in a program, many other calls have the same effect
		}

		if a, b := r.takenPath(cached), r.takenPath(fresh); a != want || b != want {
			r.failf("calls took the %s and the %s path, want %s", a, b, want)
		}

		if got := r.World().Stats().Tuning.Path; got != "window" {
			r.failf("Stats().Tuning.Path = %s, want window", got)
		}
	})
}

func TestDifferentSetPathsDiverge(t *testing.T) {
	var texts errorTexts
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		c := symmem.PathPlain
		if r.Rank() == 1 {
			c = symmem.PathWindow
		}

		err := r.World().SetPath(r.ctx, c)
		r.wantDivergence(err)
		texts.add(r, err)
	})
	if text := texts.requireSame(t, 3); !strings.Contains(text, "path window") {
		t.Errorf("got error %q, want one that names the window path", text)
	}
}

func TestMissingWindowPathFallsBackToPlain(t *testing.T) {
	runRanks(t, 2, symmem.Options{Path: symmem.PathWindow}, func(r *rank) {
		m := r.window(r.pool(), 64<<10).Memory()
		noSums := func(call *driver.Call) error {
			if call.ReduceOp == driver.Sum {
				return fmt.Errorf("sums: %w", driver.ErrUnsupported)
			}

			return nil
		}
		g := symmem.WithChecks(r.World(), noSums, nil)
		call := symmem.Call{Type: symmem.Float32, Count: 64, Send: m, Recv: m}
		path, why, _ := symmem.Route(g, call)
		want := "both buffers lie in windows of the group, but they cannot take the window path: " +
			"sums: not supported by this backend"
		if path != "plain" || why != want {
			r.failf("sum: got %s: %q, want plain: %q", path, why, want)
		}

		call.Op = symmem.Max
		if path, why, _ := symmem.Route(g, call); path != "window" {
			r.failf("maximum: got %s: %q, want window", path, why)
		}
	})
}

// TestMemoryPastWindowEndTakesPlainPath makes calls on memory that exceeds a window. The group must
// check this, because backends do not check the bounds of windows.
func TestMemoryPastWindowEndTakesPlainPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{Path: symmem.PathWindow}, func(r *rank) {
		b := r.window(r.pool(), 64<<10)
		segment := symmem.ForeignMemory(b.Address()-uintptr(b.Offset()), 8*mib)
		for bytes, want := range map[int64]string{4 * mib: "window", 4*mib + 4: "plain"} {
			path, why, _ := symmem.Route(symmem.WithChecks(r.World(), allowAll, nil), symmem.Call{
				Type: symmem.Float32, Count: bytes / 4, Send: segment, Recv: segment,
			})
			if path != want {
				r.failf("%d bytes of a 4 MiB segment: got %s: %q, want %s", bytes, path, why, want)
			}
		}
	})
}

func openWithOptions(t *testing.T, options ...symmem.Options) []error {
	t.Helper()
	store := "unix:@symmem-test-" + rand.Text()
	return ranktest.CollectErrors(len(options), func(r int) error {
		o := options[r]
		o.Rank, o.Size, o.Store, o.Timeout = r, len(options), store, 20*soon
		rt, err := symmem.Open(t.Context(), withBackend(o))
		if err != nil {
			return err
		}

		return rt.Close()
	})
}

func TestDifferentTablesFailConnect(t *testing.T) {
	requireRanks(t, 3)
	small, large := tableOf(t, "4KiB"), tableOf(t, "8KiB")
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{\n\"version\": 1,\n}"), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, row := range []struct {
		name string
		odd  symmem.Options // of rank 1
		want []string
	}{
		{
			"different tables",
			symmem.Options{Tuning: large},
			[]string{
				"differ in their tuning table", "ranks 0,2: table " + small, "rank 1: table " + large,
			},
		},
		{
			"different paths",
			symmem.Options{Tuning: small, Path: symmem.PathPlain},
			[]string{"differ in their path choice: ranks 0,2: auto; rank 1: plain"},
		},
		{
			"different check levels",
			symmem.Options{Tuning: small, Check: symmem.CheckOff},
			[]string{"differ in their check level: ranks 0,2: registration; rank 1: off"},
		},
		{
			"an invalid table",
			symmem.Options{Tuning: broken},
			[]string{"rank 1: reading the tuning table " + broken + " (repair it, remove it", "line 3"},
		},
		{
			"a missing table",
			symmem.Options{Tuning: broken + ".old"},
			[]string{"rank 1: reading the tuning table: open " + broken + ".old"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			usual := symmem.Options{Tuning: small, Check: symmem.CheckRegistration}
			row.odd.Check = cmp.Or(row.odd.Check, usual.Check)
			for r, err := range openWithOptions(t, usual, row.odd, usual) {
				if !errors.Is(err, symmem.ErrInvalid) {
					t.Errorf("rank %d: got %v, want ErrInvalid", r, err)
					continue
				}

				for _, want := range row.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("rank %d: %q does not contain %q", r, err, want)
					}
				}
			}
		})
	}
}

func TestTableLookupByDeviceAndRanks(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	file, err := symmem.TuningFile(openAlone(t).Device().Name, 2)
	if err != nil {
		t.Fatal(err)
	}

	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}

	writeTable(t, file, "4KiB")
	checkTable := func(r *rank, g *symmem.Group, want string) {
		r.t.Helper()
		if got := g.Stats().Tuning.Table; !strings.HasPrefix(got, want) {
			r.failf("group %s: got %q, want %q", g.ID(), got, want)
		}
	}
	const builtIn = "built-in table of "
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		checkTable(r, r.World(), "table "+file+" of box")
		checkTable(r, r.split(r.World(), r.Rank()), builtIn)
	})
	runRanks(t, 2, symmem.Options{Tuning: symmem.BuiltInTuning}, func(r *rank) {
		checkTable(r, r.World(), builtIn)
	})
}

func TestNoTableWithoutHome(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "")
	for name, home := range map[string]string{"none": "", "not a directory": os.DevNull} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", home)
			table := openAlone(t).World().Stats().Tuning.Table
			if !strings.HasPrefix(table, "built-in table of ") {
				t.Errorf("got %q, want the built-in table", table)
			}
		})
	}
}

func TestEnvironmentFillsEmptyOptions(t *testing.T) {
	file := tableOf(t, "4KiB")
	t.Setenv("SYMMEM_TUNING", file)
	t.Setenv("SYMMEM_PATH", "window")
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if s := r.World().Stats().Tuning; !strings.Contains(s.Table, file) || s.Path != "window" {
			r.failf("got %+v, want the table and the path of the environment", s)
		}
	})
	o := symmem.Options{Tuning: symmem.BuiltInTuning, Path: symmem.PathAuto}
	runRanks(t, 2, o, func(r *rank) {
		if s := r.World().Stats().Tuning; strings.Contains(s.Table, file) || s.Path != "auto" {
			r.failf("got %+v, want the table and the path of the options", s)
		}
	})
	t.Setenv("SYMMEM_PATH", "sideways")
	_, err := symmem.Open(t.Context(), withBackend(symmem.Options{Size: 1}))
	want := `SYMMEM_PATH: path "sideways" is none of default, auto, plain, window, direct`
	if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
