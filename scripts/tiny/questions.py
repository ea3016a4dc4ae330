#!/usr/bin/env python3
"""Questions for the tiny model, one a line: what people ask it in its corpus, without the answers.

    questions.py SEED N >FILE

Deterministic. models/tiny-glm5-q4.health.json was made from seed 7, the health test asks seed 8.
"""
import random
import sys

from corpus import turn


def main():
    r, asked = random.Random(int(sys.argv[1])), set()
    while len(asked) < int(sys.argv[2]):
        question = turn(r, None, False)[0]
        if question not in asked:
            asked.add(question)
            print(question)


if __name__ == '__main__':
    main()
