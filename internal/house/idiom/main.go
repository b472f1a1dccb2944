// Command idiom lists the words and pairs of words that distinguish the comments of one tree of Go
// code from other trees.
//
//	go run ./internal/house/idiom [-n 50] [-tests] FOLDER OTHER...
//
// Each OTHER is a checkout of a well-known project. The output has four columns: a score, the
// number of occurrences in FOLDER, the number in all OTHER trees, and the word or pair. A high
// score means that the word is typical of FOLDER.
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
	wordCount := flag.Int("n", 50, "number of words and pairs")
	includeTests := flag.Bool("tests", false, "read test files too")
	flag.Parse()
	if flag.NArg() < 2 {
		flag.Usage()
		os.Exit(2)
	}

	folder := flag.Arg(0)
	others := flag.Args()[1:]
	err := run(os.Stdout, *wordCount, *includeTests, folder, others)
	if err != nil {
		fmt.Fprintln(os.Stderr, "idiom:", err)
		os.Exit(1)
	}
}

// run prints the wordCount words and pairs that are most typical of folder.
func run(out io.Writer, wordCount int, includeTests bool, folder string, others []string) error {
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

	for _, w := range compare(ours, theirs, wordCount) {
		fmt.Fprintf(out, "%7.1f %6d %6d  %s\n", w.score, w.ours, w.theirs, w.text)
	}

	return nil
}

// counts holds the number of occurrences of each word and pair.
type counts map[string]int

// wordPattern matches English words, but not names such as "WalkDir" or "x2".
var wordPattern = regexp.MustCompile(`\b[A-Za-z][a-z]*(?:'[a-z]+)?\b`)

// read counts the words in the comments of a tree's Go files.
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

// add counts the words of a text, and the pairs of adjacent words without punctuation between them.
func (c counts) add(text string) {
	isPunctuation := func(r rune) bool { return strings.ContainsRune(".,:;()[]`\"", r) }
	for part := range strings.FieldsFuncSeq(text, isPunctuation) {
		previous := ""
		for _, match := range wordPattern.FindAllString(part, -1) {
			word := strings.ToLower(match)
			c[word]++
			if previous != "" {
				c[previous+" "+word]++
			}

			previous = word
		}
	}
}

// scoredWord is a word or a pair, with its number of occurrences in each corpus.
type scoredWord struct {
	text         string
	score        float64
	ours, theirs int
}

// compare returns the wordCount words that are most typical of ours, the highest score first. A
// score is the log odds ratio of a word divided by the standard deviation of this ratio. The
// division keeps rare words from scoring high by chance.
func compare(ours, theirs counts, wordCount int) []scoredWord {
	var all []scoredWord
	ourTotal := ours.total()
	theirTotal := theirs.total()
	for text, count := range ours {
		const continuity = 0.5 // Haldane-Anscombe correction: avoids odds of 0
		ourCount := float64(count) + continuity
		theirCount := float64(theirs[text]) + continuity
		ourOdds := ourCount / (ourTotal - ourCount)
		theirOdds := theirCount / (theirTotal - theirCount)
		logOddsRatio := math.Log(ourOdds) - math.Log(theirOdds)
		deviation := math.Sqrt(1/ourCount + 1/theirCount)
		all = append(all, scoredWord{
			text:   text,
			score:  logOddsRatio / deviation,
			ours:   count,
			theirs: theirs[text],
		})
	}

	slices.SortFunc(all, func(a, b scoredWord) int {
		return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.text, b.text))
	})
	return all[:min(wordCount, len(all))]
}

// total returns the sum of all counts plus 1. It exceeds the largest count plus the continuity
// correction of compare, so that no odds are infinite.
func (c counts) total() float64 {
	sum := 0
	for _, count := range c {
		sum += count
	}

	return float64(sum) + 1
}
