package page

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/internal/page/pagetest"
)

// frameInterval returns the 95th percentile of the intervals in window.frameTimes, which
// testMillion records, and their number.
func frameInterval(p *pagetest.Page) (interval time.Duration, count int) {
	var times []float64 // in milliseconds
	p.Eval(`window.frameTimes`, &times)
	var all []time.Duration
	for i := range len(times) - 1 {
		all = append(all, time.Duration((times[i+1]-times[i])*float64(time.Millisecond)))
	}

	slices.Sort(all)
	return all[len(all)*95/100], len(all)
}

// testMillion tests the speed of a page with 10^6 events by the CPU time of its main thread, which
// other processes hardly change.
func testMillion(t *testing.T, b *pagetest.Browser) {
	const (
		openTime    = 2 * time.Second
		scriptTime  = 33 * time.Millisecond
		frameTime   = 100 * time.Millisecond
		largestFile = 30 << 20
		frames      = 100
		p95         = 94 // index of the 95th percentile of 100 sorted values
		keyRepeats  = 3
	)
	if testing.Short() {
		t.Skip("skipped in short mode: it opens a page with 10^6 events")
	}

	at := sample{ranks: 8, requests: 125_000, extra: 60_000}.write(t)
	info, err := os.Stat(strings.TrimPrefix(at, "file://"))
	if err != nil || info.Size() > largestFile {
		t.Errorf("size of the file = %d bytes, %v; want at most %d", info.Size(), err, largestFile)
	}

	p := b.Open(t, at, desktop)
	p.WaitUntilPainted()
	_, open := p.CPUTimes()
	p.Eval(`void (() => {
		window.frameTimes = [];
		const note = (t) => { window.frameTimes.push(t); requestAnimationFrame(note); };
		requestAnimationFrame(note);
	})()`, nil)
	if open > openTime {
		t.Errorf("opening took %v of CPU time; want at most %v", open, openTime)
	}

	keys := []string{"ArrowRight", "+", "ArrowLeft", "-", "]"}
	var scripts, all []time.Duration // CPU times per frame
	for i := range frames {
		p.PressKey(keys[i/keyRepeats%len(keys)])
		script, work := p.CPUTimes()
		p.WaitForFrames() // two frames, the first of which draws
		afterScript, afterWork := p.CPUTimes()
		scripts = append(scripts, afterScript-script)
		all = append(all, (afterWork-work)/2)
	}

	slices.Sort(scripts)
	slices.Sort(all)
	t.Logf("%d bytes; opening %v; script of a frame %v, frame %v (95 of 100)", info.Size(), open,
		scripts[p95], all[p95])
	interval, count := frameInterval(p)
	t.Logf("requestAnimationFrame intervals: %v (95 of 100, %d in all)", interval, count)
	if *quiet && interval > frameTime {
		t.Errorf("95th percentile of the interval between frames = %v; want at most %v", interval,
			frameTime)
	}

	if scripts[p95] > scriptTime || all[p95] > frameTime {
		t.Errorf("95th percentile of a frame's CPU time = %v for scripts, %v in all; want at most %v, %v",
			scripts[p95], all[p95], scriptTime, frameTime)
	}

	check(t, p)
}
