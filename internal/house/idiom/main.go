// Command idiom lists the words and pairs of words that distinguish the comments of one tree of Go
// code from other trees.
//
//	go run ./internal/house/idiom [-n 50] [-tests] FOLDER OTHER...
//
// FOLDER is the tree to judge. Each OTHER is a checkout of a well-known project. The columns are
// the z-score of the log-odds ratio, the number of occurrences in FOLDER and in all OTHER trees,
// and the word.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

func main() {
	n := flag.Int("n", 50, "number of words and pairs")
	includeTests := flag.Bool("tests", false, "read test files too")
	flag.Parse()
	if flag.NArg() < 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(os.Stdout, *n, *includeTests, flag.Arg(0), flag.Args()[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "idiom:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, n int, includeTests bool, folder string, others []string) error {
	ours, theirs := counts{}, counts{}
	if err := ours.read(os.DirFS(folder), includeTests); err != nil {
		return err
	}
	for _, other := range others {
		if err := theirs.read(os.DirFS(other), includeTests); err != nil {
			return err
		}
	}
	for _, w := range compare(ours, theirs, n) {
		fmt.Fprintf(out, "%7.1f %6d %6d  %s\n", w.score, w.ours, w.theirs, w.text)
	}
	return nil
}

// counts holds the occurrences of words and of pairs of adjacent words.
type counts map[string]int

// wordPattern matches no names with capitals or digits after the first letter.
var wordPattern = regexp.MustCompile(`\b[A-Za-z][a-z]*(?:'[a-z]+)?\b`)

func (c counts) read(tree fs.FS, includeTests bool) error {
	return fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") && !includeTests:
			return nil
		}
		source, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, group := range file.Comments {
			c.add(group.Text())
		}
		return nil
	})
}

// add counts the words of a text, and the pairs of words within its sentences.
func (c counts) add(text string) {
	for sentence := range strings.FieldsFuncSeq(text, func(r rune) bool {
		return strings.ContainsRune(".,:;()[]`\"", r)
	}) {
		last := ""
		for _, w := range wordPattern.FindAllString(sentence, -1) {
			w = strings.ToLower(w)
			c[w]++
			if last != "" {
				c[last+" "+w]++
			}
			last = w
		}
	}
}

// scoredWord is a word or a pair of words.
type scoredWord struct {
	text         string
	score        float64
	ours, theirs int
}

// compare returns the words that are most typical of ours. The prior of the log-odds ratio is half
// an occurrence.
func compare(ours, theirs counts, n int) []scoredWord {
	var all []scoredWord
	total, other := ours.total(), theirs.total()
	for text, count := range ours {
		a, b := float64(count)+0.5, float64(theirs[text])+0.5
		odds := math.Log(a/(total-a)) - math.Log(b/(other-b))
		all = append(all, scoredWord{text, odds / math.Sqrt(1/a+1/b), count, theirs[text]})
	}
	slices.SortFunc(all, func(a, b scoredWord) int {
		return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.text, b.text))
	})
	return all[:min(n, len(all))]
}

func (c counts) total() float64 {
	sum := 0
	for _, n := range c {
		sum += n
	}
	return float64(sum) + 1
}
