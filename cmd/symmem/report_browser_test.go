package main

import (
	"bytes"
	"flag"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff/difftest"
	"symmem/internal/page/pagetest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the pictures of reports")

// trainingProgram returns requests like those of training: weights, and then in each step
// activations, which are freed in reverse order. The varied sizes make the picture realistic.
func trainingProgram(steps, layers int) difftest.Program {
	var p difftest.Program
	tensor := 0
	alloc := func(size int64) difftest.Request {
		tensor++
		r := difftest.Request{Tensor: tensor, Size: size}
		p = append(p, r)
		return r
	}
	free := func(r difftest.Request) {
		r.IsFree = true
		p = append(p, r)
	}
	for layer := range layers {
		alloc(int64(3+layer%3) << 20) // weights of 3 to 5 MiB
	}

	for step := range steps {
		// Forward pass.
		var activations []difftest.Request
		for layer := range layers {
			temporary := alloc(int64(1+(layer+step)%4) << 19) // 0.5 to 2 MiB
			first := alloc(int64(2+layer%4) << 20)            // 2 to 5 MiB
			second := alloc(int64(5+step%3) << 18)            // 1.25 to 1.75 MiB
			activations = append(activations, first, second)
			free(temporary)
		}

		// Backward pass.
		for i, activation := range slices.Backward(activations) {
			gradient := alloc(int64(1+i%5) << 19) // 0.5 to 2.5 MiB
			free(activation)
			free(gradient)
		}
	}

	return p
}

// writeTrainingReport returns the URL of a page about training on four ranks. Rank 2 makes an extra
// request a little before the middle.
func writeTrainingReport(t *testing.T) string {
	t.Helper()
	const steps = 6
	const layers = 12
	usual := trainingProgram(steps, layers)
	extra := difftest.Request{
		Tensor: 1 << 20, // not used by any other request
		Size:   6 << 20,
	}
	position := len(usual) * 4 / 9
	withExtra := slices.Insert(slices.Clone(usual), position, extra)
	return writePage(t, writeSnapshots(t, usual, usual, withExtra, usual))
}

// writePage returns the URL of a page about the snapshots or traces in a folder. They must differ.
func writePage(t *testing.T, folder string) (url string) {
	t.Helper()
	file := filepath.Join(folder, "report.html")
	if code, stdout, stderr := runReport(t, folder, "-o", file); code != exitBadResult {
		t.Fatalf("report = %d, %q, %q; want %d", code, stdout, stderr, exitBadResult)
	}

	return "file://" + file
}

// TestReportPictures compares the page with two pictures, which -rewrite replaces. The README shows
// report.png.
func TestReportPictures(t *testing.T) {
	const maxFraction = 0.02 // of pixels, because fonts vary between machines
	b := pagetest.Open(t)    // skips the test if there is no browser
	url := writeTrainingReport(t)
	for file, screen := range map[string]pagetest.Screen{
		"../../docs/images/report.png": {Width: 1200, Height: 800},
		"testdata/report-phone.png":    {Width: 390, Height: 844, Mobile: true, Dark: true},
	} {
		p := b.Open(t, url, screen)
		p.WaitUntilPainted()
		p.Eval(`document.fonts.ready.then(() => {})`, nil) // waits for fonts
		picture := p.Screenshot()
		if *rewrite {
			writePicture(t, file, picture)
		}

		if fraction := differingFraction(t, file, picture); fraction > maxFraction {
			shot := filepath.Join(t.ArtifactDir(), filepath.Base(file))
			writePicture(t, shot, picture)
			t.Errorf("%.1f %% of the page differs from %s, want at most %v %%; see %s, or run with "+
				"-rewrite", 100*fraction, file, 100*maxFraction, shot)
		}

		for _, e := range p.Errors() {
			t.Errorf("error on the page: %s", e)
		}
	}
}

func writePicture(t *testing.T, file string, picture image.Image) {
	t.Helper()
	var b bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&b, picture); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// differingFraction returns the fraction of pixels that clearly differ from a PNG file of the same
// size.
func differingFraction(t *testing.T, file string, got image.Image) float64 {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}

	size := want.Bounds().Size()
	if size != got.Bounds().Size() {
		t.Fatalf("the picture has %v pixels; want %v, as in %s", got.Bounds().Size(), size, file)
	}

	differingCount := 0
	for y := range size.Y {
		for x := range size.X {
			if isClearlyDifferent(want.At(x, y), got.At(x, y)) {
				differingCount++
			}
		}
	}

	return float64(differingCount) / float64(size.X*size.Y)
}

func isClearlyDifferent(a, b color.Color) bool {
	const maxDifference = 0x3000 // arbitrary; RGBA returns values up to 0xffff
	r1, g1, b1, _ := a.RGBA()
	r2, g2, b2, _ := b.RGBA()
	for _, d := range []int{int(r1) - int(r2), int(g1) - int(g2), int(b1) - int(b2)} {
		if d > maxDifference || d < -maxDifference {
			return true
		}
	}

	return false
}

func TestReportOfTraces(t *testing.T) {
	b := pagetest.Open(t) // skips the test if there is no browser
	url := writePage(t, writeTraces(t, extraBefore))
	p := b.Open(t, url, pagetest.Screen{Width: 1280, Height: 900})
	p.WaitUntilPainted()
	for selector, want := range map[string]string{
		"#verdict":      "request 27 (extra); in the minority: rank 1.",
		".label.blamed": "rank 1",
		"#details h2":   "Request 27",
		"#details .bad": "7\u2009000 B", // with a thin space
		"#differences":  "explains the rest",
	} {
		if got := p.Text(selector); !strings.Contains(got, want) {
			t.Errorf("%s contains %q; want %q", selector, got, want)
		}
	}

	for _, e := range p.Errors() {
		t.Errorf("error on the page: %s", e)
	}
}
