// Command idiom lists the terms (words and pairs of words) that distinguish the comments of one
// tree of Go code from those of other trees.
//
//	go run ./internal/house/idiom [-n 50] [-tests] FOLDER OTHER...
//
// The output has four columns: a score, the number of occurrences in FOLDER, the number in all
// OTHER trees, and the term. Terms that are typical of FOLDER have high scores.
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
	termCount := flag.Int("n", 50, "number of terms")
	includeTests := flag.Bool("tests", false, "read test files too")
	flag.Parse()
	if flag.NArg() < 2 {
		flag.Usage()
		os.Exit(2)
	}

	folder := flag.Arg(0)
	others := flag.Args()[1:]
	err := run(os.Stdout, *termCount, *includeTests, folder, others)
	if err != nil {
		fmt.Fprintln(os.Stderr, "idiom:", err)
		os.Exit(1)
	}
}

// run prints the termCount most typical terms of folder.
func run(out io.Writer, termCount int, includeTests bool, folder string, others []string) error {
	ours := counts{}
	if err := ours.read(os.DirFS(folder), includeTests); err != nil {
		return err
	}

	theirs := counts{}
	for _, other := range others {
		if err := theirs.read(os.DirFS(other), includeTests); err != nil {
			return err
		}
	}

	for _, t := range compare(ours, theirs, termCount) {
		fmt.Fprintf(out, "%7.1f %6d %6d  %s\n", t.score, t.ours, t.theirs, t.text)
	}

	return nil
}

// counts holds the number of occurrences of each term.
type counts map[string]int

// read counts the terms in the comments of a tree's Go files.
func (c counts) read(tree fs.FS, includeTests bool) error {
	return fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		if entry.IsDir() {
			isHidden := strings.HasPrefix(entry.Name(), ".") && name != "."
			if isHidden || entry.Name() == "testdata" {
				return fs.SkipDir
			}

			return nil
		}

		isGo := path.Ext(name) == ".go"
		isExcludedTest := strings.HasSuffix(name, "_test.go") && !includeTests
		if !isGo || isExcludedTest {
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

// wordPattern skips names with inner capitals or digits, such as "WalkDir" and "x2".
var wordPattern = regexp.MustCompile(`\b[A-Za-z][a-z]*(?:'[a-z]+)?\b`)

// add counts the words of a text. It also counts pairs of consecutive words, except across
// punctuation.
func (c counts) add(text string) {
	isPunctuation := func(r rune) bool { return strings.ContainsRune(".,:;()[]`\"", r) }
	for phrase := range strings.FieldsFuncSeq(text, isPunctuation) {
		previous := ""
		for _, match := range wordPattern.FindAllString(phrase, -1) {
			word := strings.ToLower(match)
			c[word]++
			if previous != "" {
				c[previous+" "+word]++
			}

			previous = word
		}
	}
}

type scoredTerm struct {
	text         string
	score        float64
	ours, theirs int
}

// compare returns the termCount terms with the highest scores. The score is the logarithm of the
// odds ratio, divided by the standard deviation of this logarithm. The division lowers the scores
// of rare terms, whose odds ratios may be high by chance.
func compare(ours, theirs counts, termCount int) []scoredTerm {
	var all []scoredTerm
	ourTotal := ours.total()
	theirTotal := theirs.total()
	for text, count := range ours {
		theirCount := theirs[text]
		logOddsRatio := math.Log(odds(count, ourTotal)) - math.Log(odds(theirCount, theirTotal))
		deviation := math.Sqrt(1/corrected(count) + 1/corrected(theirCount))
		all = append(all, scoredTerm{
			text:   text,
			score:  logOddsRatio / deviation,
			ours:   count,
			theirs: theirCount,
		})
	}

	slices.SortFunc(all, func(a, b scoredTerm) int {
		return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.text, b.text))
	})
	return all[:min(termCount, len(all))]
}

func (c counts) total() int {
	sum := 0
	for _, count := range c {
		sum += count
	}

	return sum
}

// odds estimates the odds of a term that occurs count times among total terms.
func odds(count, total int) float64 { return corrected(count) / corrected(total-count) }

// corrected adds 0.5 (the Haldane-Anscombe correction), so that no odds are zero or infinite.
func corrected(count int) float64 { return float64(count) + 0.5 }
