package page

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/internal/page/pagetest"
)

// frameInterval returns the 95th percentile of the intervals between frames, and the number of
// intervals. It reads the times of the frames from window.frameTimes.
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

// testMillion tests the speed of the page with 10^6 events. It measures the CPU time of the page's
// main thread, because CPU time hardly depends on other processes.
func testMillion(t *testing.T, b *pagetest.Browser) {
	const (
		openTime    = 2 * time.Second
		scriptTime  = 33 * time.Millisecond
		frameTime   = 100 * time.Millisecond
		largestFile = 30 << 20
		frames      = 100
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

	var scripts, all []time.Duration
	for i := range frames {
		p.PressKey([]string{"ArrowRight", "+", "ArrowLeft", "-", "]"}[i/3%5])
		script, work := p.CPUTimes()
		p.WaitForFrames() // waits for two frames, the first of which draws
		afterScript, afterWork := p.CPUTimes()
		scripts, all = append(scripts, afterScript-script), append(all, (afterWork-work)/2)
	}

	slices.Sort(scripts)
	slices.Sort(all)
	t.Logf("%d bytes; opening %v; script of a frame %v, frame %v (95 of 100)", info.Size(), open,
		scripts[94], all[94])
	interval, count := frameInterval(p)
	t.Logf("requestAnimationFrame intervals: %v (95 of 100, %d in all)", interval, count)
	if *quiet && interval > frameTime {
		t.Errorf("95th percentile of the interval between frames = %v; want at most %v", interval,
			frameTime)
	}

	if scripts[94] > scriptTime || all[94] > frameTime {
		t.Errorf("95th percentile of a frame's CPU time = %v for scripts, %v in all; want at most %v, %v",
			scripts[94], all[94], scriptTime, frameTime)
	}

	check(t, p)
}
