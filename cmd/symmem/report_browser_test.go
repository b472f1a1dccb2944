package main

import (
	"bytes"
	"flag"
	"image"
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

// trainingProgram returns a program that resembles training: it allocates weights and, in each
// step, activations that the backward pass frees in reverse order.
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
		alloc(int64(3+layer%3) << 20)
	}
	for step := range steps {
		var activations []difftest.Request
		for layer := range layers {
			work := alloc(int64(1+(layer+step)%4) << 19)
			activations = append(activations, alloc(int64(2+layer%4)<<20), alloc(int64(5+step%3)<<18))
			free(work)
		}
		for layer := len(activations) - 1; layer >= 0; layer-- {
			gradient := alloc(int64(1+layer%5) << 19)
			free(activations[layer])
			free(gradient)
		}
	}
	return p
}

// writeTrainingReport writes a report about training on four ranks, and returns the URL of its
// page. Rank 2 allocates one more tensor than the others.
func writeTrainingReport(t *testing.T) string {
	t.Helper()
	const steps, layers = 6, 12
	usual := trainingProgram(steps, layers)
	position := len(usual) * 4 / 9 // of the additional request
	additional := difftest.Request{Tensor: 1 << 20, Size: 6 << 20}
	deviant := slices.Insert(slices.Clone(usual), position, additional)
	dir := writeSnapshots(t, usual, usual, deviant, usual)
	file := filepath.Join(dir, "report.html")
	if code, stdout, stderr := runReport(t, dir, "-o", file); code != exitWrong {
		t.Fatalf("report = %d, %q, %q; want %d", code, stdout, stderr, exitWrong)
	}
	return "file://" + file
}

// TestReportPictures compares screenshots of a report page with the pictures in the repository.
// With -rewrite, it replaces the pictures, one of which is shown in the README.
func TestReportPictures(t *testing.T) {
	const maxFraction = 0.02
	b := pagetest.Open(t)
	url := writeTrainingReport(t)
	for file, screen := range map[string]pagetest.Screen{
		"../../docs/images/report.png": {Width: 1200, Height: 800},
		"testdata/report-phone.png":    {Width: 390, Height: 844, Mobile: true, Dark: true},
	} {
		p := b.Open(t, url, screen)
		p.WaitUntilPainted()
		p.Eval(`document.fonts.ready.then(() => {})`, nil) // wait until fonts are loaded
		picture := p.Screenshot()
		if *rewrite {
			writePicture(t, file, picture)
		}
		if fraction := differingFraction(t, file, picture); fraction > maxFraction {
			shot := filepath.Join(t.ArtifactDir(), filepath.Base(file))
			writePicture(t, shot, picture)
			t.Errorf("%.1f %% of the page differs from %s; see %s, or run with -rewrite", 100*fraction,
				file, shot)
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

// differingFraction returns the fraction of pixels that clearly differ from those in a file.
func differingFraction(t *testing.T, file string, got image.Image) float64 {
	t.Helper()
	const maxDifference = 0x3000 // of 0xffff
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
	count := 0
	for y := range size.Y {
		for x := range size.X {
			r, g, b, _ := want.At(x, y).RGBA()
			r2, g2, b2, _ := got.At(x, y).RGBA()
			for _, d := range []int{int(r) - int(r2), int(g) - int(g2), int(b) - int(b2)} {
				if d > maxDifference || d < -maxDifference {
					count++
					break
				}
			}
		}
	}
	return float64(count) / float64(size.X*size.Y)
}

// TestReportOfTraces runs ranks that write traces, and opens the report page of these traces.
func TestReportOfTraces(t *testing.T) {
	b := pagetest.Open(t)
	dir := writeTraces(t, 20)
	file := filepath.Join(dir, "report.html")
	if code, stdout, stderr := runReport(t, dir, "-o", file); code != exitWrong {
		t.Fatalf("report = %d, %q, %q; want %d", code, stdout, stderr, exitWrong)
	}
	p := b.Open(t, "file://"+file, pagetest.Screen{Width: 1280, Height: 900})
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
