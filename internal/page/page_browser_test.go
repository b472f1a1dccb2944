package page

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"symmem/internal/page/pagetest"
)

var (
	desktop = pagetest.Screen{Width: 1280, Height: 900}
	phone   = pagetest.Screen{Width: 390, Height: 844, Mobile: true}
)

// TestBrowser tests the page in Chromium. Its subtests share one browser.
func TestBrowser(t *testing.T) {
	b := pagetest.Open(t)
	for _, part := range []struct {
		name string
		test func(*testing.T, *pagetest.Browser)
	}{
		{"difference", testDifference},
		{"hostile", testHostile},
		{"keys", testKeys},
		{"links", testLinks},
		{"search", testSearch},
		{"pointer", testPointer},
		{"phone", testPhone},
		{"themes", testThemes},
		{"live", testLive},
		{"broken", testBroken},
		{"empty", testEmpty},
		{"older", testOlder},
		{"million", testMillion},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, b) })
	}
}

func check(t *testing.T, p *pagetest.Page) {
	t.Helper()
	for _, e := range p.Errors() {
		t.Errorf("error on the page: %s", e)
	}
}

// fragment returns a field of the state that the page stores in the fragment of its URL.
func fragment(p *pagetest.Page, field string) string {
	p.WaitUntilPainted()
	var text string
	p.Eval(`new Promise((f) => setTimeout(() => f(location.hash), 300))`, &text)
	values, err := url.ParseQuery(strings.TrimPrefix(text, "#"))
	if err != nil {
		return err.Error()
	}

	return values.Get(field)
}

// redPixels is a JavaScript function that counts the red pixels of a lane (the map of one rank). It
// returns their number on each side of the given part of the lane's width.
const redPixels = `(lane, part) => {
	const c = document.querySelectorAll("#lanes canvas")[lane];
	const at = Math.round(c.width * part);
	const count = (x, width) => {
		const d = c.getContext("2d").getImageData(x, 0, width, c.height).data;
		let n = 0;
		for (let i = 0; i < d.length; i += 4) {
			n += d[i] > 200 && d[i + 1] < 110 && d[i + 2] < 110 && d[i + 3] > 200 ? 1 : 0;
		}
		return n;
	};
	return [count(0, at - 8), count(at + 8, c.width - at - 8)];
}`

func testDifference(t *testing.T, b *pagetest.Browser) {
	p := b.Open(t, sample{ranks: 4, requests: 400, extra: 200}.write(t), desktop)
	p.WaitUntilPainted()
	if got := p.Text("#verdict"); got != "verdict" {
		t.Errorf("#verdict = %q; want verdict", got)
	}

	if got := p.Text(".label.blamed"); !strings.Contains(got, "rank 2") {
		t.Errorf("label of the blamed lane = %q; want rank 2", got)
	}

	details := p.Text("#details")
	for _, want := range []string{
		"Request 200", "ranks 0\u20131, 3", "4\u2009321 B", "model.py:2 backward",
	} {
		if !strings.Contains(details, want) {
			t.Errorf("details do not contain %q:\n%s", want, details)
		}
	}

	for lane := range 4 {
		var red []int
		p.Eval(fmt.Sprintf("(%s)(%d, 0.5)", redPixels, lane), &red)
		if red[0] != 0 || (red[1] > 500) != (lane == 2) {
			t.Errorf("lane %d has %v red pixels before and after the difference; want them on rank 2 "+
				"alone, after it", lane, red)
		}
	}

	for selector, want := range map[string]string{
		"#faults": "rank 0 is late", "#pending": "request 9 is missing", "#windows": "1 MiB",
		"#paths": "window", "#files": "note", "#differences": "explanation",
	} {
		if got := p.Text(selector); !strings.Contains(got, want) {
			t.Errorf("%s contains %q; want %q", selector, got, want)
		}
	}

	check(t, p)
}

func testHostile(t *testing.T, b *pagetest.Browser) {
	name := `<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>` +
		"\u202e\x00'\"&amp;`${1}"
	p := b.Open(t, sample{ranks: 4, requests: 100, extra: 50, name: name}.write(t), desktop)
	p.WaitUntilPainted()
	for _, key := range []string{"p", "]", "d"} {
		p.PressKey(key)
		p.WaitForFrames()
	}

	var hacked bool
	p.Eval(`window.hacked !== undefined || document.querySelector("img, #app script") !== null`,
		&hacked)
	if hacked {
		t.Error("text from the data was executed or became an HTML element")
	}

	for _, selector := range []string{
		"#verdict", "h1", "#faults", "#windows", "#paths", "#files", "#differences", "#details",
	} {
		if got := p.Text(selector); !strings.Contains(got, `<img src=x onerror="window.hacked=1">`) {
			t.Errorf("%s contains %.200q; want the unchanged text", selector, got)
		}
	}

	check(t, p)
}

func testKeys(t *testing.T, b *pagetest.Browser) {
	p := b.Open(t, sample{ranks: 4, requests: 4000, extra: 200}.write(t), desktop)
	number := func(field string) float64 {
		v, err := strconv.ParseFloat(fragment(p, field), 64)
		if err != nil {
			t.Fatal(err)
		}

		return v
	}
	width := func() float64 { return number("to") - number("from") }
	all := width()
	p.PressKey("d")
	if got := width(); got != 200 || number("at") != 200 || number("rank") != 2 {
		t.Errorf("after d: %v requests, at %v, rank %v; want 200, 200, 2", got, number("at"),
			number("rank"))
	}

	p.PressKey("+")
	if got := width(); got != 100 {
		t.Errorf("after +: %v requests; want 100", got)
	}

	from := number("from")
	p.PressKey("ArrowRight")
	if got := number("from"); got != from+10 {
		t.Errorf("after the right arrow: from = %v; want %v", got, from+10)
	}

	p.PressKey("]")
	p.PressKey("ArrowUp")
	if number("at") != 201 || number("rank") != 1 {
		t.Errorf("after ] and up: request %v, rank %v; want 201, 1", number("at"), number("rank"))
	}

	p.PressKey("f")
	if got := width(); got != all {
		t.Errorf("after f: %v requests; want %v", got, all)
	}

	p.PressKey("c")
	if got := fragment(p, "color"); got != "stack" {
		t.Errorf("after c: color = %q; want stack", got)
	}

	p.PressKey("p")
	if got := fragment(p, "s"); got != "0" {
		t.Errorf("after p: sequence %s; want 0", got)
	}

	p.PressKey("?")
	p.Wait(`document.getElementById("help").open`)
	p.Eval(`document.getElementById("help").close()`, nil)
	p.PressKey("/")
	p.Wait(`document.activeElement.type === "search"`)
	check(t, p)
}

func testLinks(t *testing.T, b *pagetest.Browser) {
	at := sample{ranks: 4, requests: 4000, extra: 200}.write(t)
	p := b.Open(t, at+"#s=1&at=1234&rank=3&from=1000&to=1500&color=size&q=forward", desktop)
	for field, want := range map[string]string{
		"at": "1234", "rank": "3", "from": "1000.0", "to": "1500.0", "color": "size", "q": "forward",
	} {
		if got := fragment(p, field); got != want {
			t.Errorf("fragment %s = %q; want %q", field, got, want)
		}
	}

	p.Eval(`location.hash = "#s=1&at=77"`, nil)
	p.Wait(`document.querySelector("#details h2").innerText === "Request 77"`)
	for _, hostile := range []string{
		"#s=99&at=1e99&rank=-5&from=NaN&to=Infinity", "#s=-1&from=5&to=1", "#%zz&&==", "#at=x&color=<b>",
		"#s=1&from=-1e300&to=1e300&at=-1e300", "#from=0&to=1e-300",
	} {
		p := b.Open(t, at+hostile, desktop)
		p.WaitUntilPainted()
		if got := p.Text("#details"); !strings.Contains(got, "Request") {
			t.Errorf("details with the fragment %s = %q; want a request", hostile, got)
		}

		check(t, p)
	}

	check(t, p)
}

func testSearch(t *testing.T, b *pagetest.Browser) {
	p := b.Open(t, sample{ranks: 4, requests: 400, extra: 200}.write(t), desktop)
	for query, want := range map[string]string{
		"4321": "1 match", "FORWARD": "matches", "#17": "1 match", "absent": "0 matches",
		"(": "0 matches", "4.2197265625 KiB": "1 match",
	} {
		p.PressKey("/")
		p.Eval(`document.querySelector("input").select()`, nil)
		p.TypeText(query)
		p.PressKey("Enter")
		if got := p.Text("output"); !strings.Contains(got, want) {
			t.Errorf("search for %s: output = %q; want %q", query, got, want)
		}

		p.Eval(`document.activeElement.blur()`, nil)
	}

	p.PressKey("/")
	p.Eval(`document.querySelector("input").select()`, nil)
	p.TypeText("#17")
	p.PressKey("Enter")
	p.Wait(`document.querySelector("#details h2").innerText === "Request 17"`)
	check(t, p)
}

func testPointer(t *testing.T, b *pagetest.Browser) {
	p := b.Open(t, sample{ranks: 4, requests: 4000, extra: 200}.write(t), desktop)
	p.WaitUntilPainted()
	var box []float64
	p.Eval(`(() => { const b = document.querySelectorAll("#lanes canvas")[1].getBoundingClientRect();
		return [b.x, b.y, b.width, b.height]; })()`, &box)
	x, y := box[0]+box[2]/2, box[1]+box[3]/2
	p.TurnWheel(x, y, 0, -500, true)
	p.WaitForFrames()
	from, to := fragment(p, "from"), fragment(p, "to")
	a, _ := strconv.ParseFloat(from, 64)
	z, _ := strconv.ParseFloat(to, 64)
	if z-a > 1500 || a > 2000 || z < 2000 {
		t.Errorf("after the wheel: range from %s to %s; want a smaller one around 2000", from, to)
	}

	p.TurnWheel(x, y, 100, 0, false)
	if got, _ := strconv.ParseFloat(fragment(p, "from"), 64); got <= a {
		t.Errorf("after scrolling right: from = %v; want more than %v", got, a)
	}

	p.Click(x, y)
	p.WaitUntilPainted()
	if got := fragment(p, "rank"); got != "1" {
		t.Errorf("after a click: rank %s; want 1", got)
	}

	check(t, p)
}

func testPhone(t *testing.T, b *pagetest.Browser) {
	p := b.Open(t, sample{ranks: 4, requests: 400, extra: 200}.write(t), phone)
	p.WaitUntilPainted()
	var wide []string
	p.Eval(`document.documentElement.scrollWidth <= 390 ? [] :
		[...document.querySelectorAll("#app *")].filter((e) => e.getBoundingClientRect().right > 391 &&
			e.closest(".scroll") === null).map((e) => e.tagName + "." + e.className)`, &wide)
	if len(wide) > 0 {
		t.Errorf("elements that are too wide on a phone: %v", wide)
	}

	var small []string
	p.Eval(`[...document.querySelectorAll("#tools button, #tools select")].filter((e) =>
		e.getBoundingClientRect().height < 36).map((e) => e.innerText)`, &small)
	if len(small) > 0 {
		t.Errorf("controls that are too small on a phone: %v", small)
	}

	check(t, p)
}

func testThemes(t *testing.T, b *pagetest.Browser) {
	at := sample{ranks: 2, requests: 40, extra: -1}.write(t)
	const background = `getComputedStyle(document.body).backgroundColor`
	for dark, want := range map[bool]string{false: "rgb(251, 251, 250)", true: "rgb(20, 23, 27)"} {
		screen := desktop
		screen.Dark = dark
		p := b.Open(t, at, screen)
		var got, after string
		p.Eval(background, &got)
		p.PressKey("t")
		p.Eval(background, &after)
		if got != want || after == want {
			t.Errorf("dark = %v: background %s, and after t %s; want %s, then another", dark, got, after,
				want)
		}

		check(t, p)
	}
}

func testLive(t *testing.T, b *pagetest.Browser) {
	var requests atomic.Int64
	requests.Store(40)
	var isStopped atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		if err := WriteShell(w, "live", "data.bin"); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("GET /data.bin", func(w http.ResponseWriter, r *http.Request) {
		if isStopped.Load() {
			<-r.Context().Done()
			return
		}

		n := requests.Load()
		tag := fmt.Sprintf("%q", fmt.Sprint(n))
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}

		w.Header().Set("ETag", tag)
		p := sample{ranks: 2, requests: int(n), extra: -1}.build()
		p.Live = true
		if err := p.WriteData(w); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	defer server.CloseClientConnections() // else Close would wait for the stopped requests
	p := b.Open(t, server.URL+"/", desktop)
	p.Wait(`document.querySelector("#top p").innerText === "2 files, 80 events"`)
	requests.Store(50)
	p.Wait(`document.querySelector("#top p").innerText === "2 files, 100 events"`)
	check(t, p)
	isStopped.Store(true)
	p.Wait(`document.body.dataset.lost?.includes("may be stopped")`)
	isStopped.Store(false)
	p.Wait(`document.body.dataset.lost === undefined`)
	server.Close()
	p.Wait(`document.body.dataset.lost !== undefined`)
}

// testBroken checks that a page with broken data shows why the data cannot be displayed.
func testBroken(t *testing.T, b *pagetest.Browser) {
	var whole bytes.Buffer
	if err := (sample{ranks: 2, requests: 40, extra: -1}).build().WriteHTML(&whole, ""); err != nil {
		t.Fatal(err)
	}

	begin, rest, _ := strings.Cut(whole.String(), `id="data">`)
	data, end, _ := strings.Cut(rest, "</script>")
	for name, broken := range map[string]string{
		"other": "aGVsbG8gd29ybGQ=", "cut": data[:len(data)/8*4], "text": "<?!", "gzip": "H4sIAAAA",
	} {
		file := filepath.Join(t.TempDir(), name+".html")
		text := begin + `id="data">` + broken + "</script>" + end
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		p := b.Open(t, "file://"+file, desktop)
		if got := p.Text("#verdict"); !strings.HasPrefix(got, "The page cannot be shown: ") {
			t.Errorf("%s: #verdict = %q; want the reason why the page cannot be shown", name, got)
		}
	}
}

func testEmpty(t *testing.T, b *pagetest.Browser) {
	p := b.Open(t, writeFile(t, &Page{Title: "empty", Verdict: "nothing"}), desktop)
	for _, key := range []string{"d", "p", "+", "]"} {
		p.PressKey(key)
	}

	if got := p.Text("#verdict"); got != "nothing" {
		t.Errorf("verdict %q; want nothing", got)
	}

	check(t, p)
}

// testOlder tests a block that was allocated before the track begins. The map must show the block
// until it is freed.
func testOlder(t *testing.T, b *pagetest.Browser) {
	track := &Track{Segments: []Segment{{Bytes: 100}, {Bytes: 100}}}
	track.Add(&Event{Kind: Older, Size: 100, Block: -1, Stack: -1})
	for i := range 20 {
		if i == 10 {
			track.Add(&Event{Kind: Free, Size: 100, Block: -1, Stack: -1})
		}

		track.Add(&Event{
			Kind: Alloc, Segment: 1, Block: int32(i), Offset: int64(i), Size: 1, Stack: -1,
		})
	}

	p := b.Open(t, writeFile(t, &Page{
		Ranks: []Rank{{}}, Sequences: []Sequence{{Tracks: []*Track{track}}},
	}), desktop)
	p.WaitUntilPainted()
	var alpha []int
	p.Eval(`(() => {
		const c = document.querySelector("#lanes canvas");
		const at = (x) => c.getContext("2d").getImageData(c.width * x, c.height * 0.75, 1, 1).data[3];
		return [at(0.25), at(0.75)];
	})()`, &alpha)
	if alpha[0] == 0 || alpha[1] != 0 {
		t.Errorf("opacity of the older block before and after its free = %v; want only the first",
			alpha)
	}

	check(t, p)
}

// quiet makes tests check even times that depend on the load of the machine.
var quiet = flag.Bool("quiet", false, "check the time between frames: no other process is running")
