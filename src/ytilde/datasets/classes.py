"""The class names of the published sets."""

from __future__ import annotations

_words = str.split


DIGITS = _words("0 1 2 3 4 5 6 7 8 9")
FASHION = _words("T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle-boot")
CIFAR10 = _words("airplane automobile bird cat deer dog frog horse ship truck")
# CIFAR-100's 20 coarse classes, five fine ones each. Both lists are numbered alphabetically.
CIFAR100 = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
CIFAR100_FINE = sorted(fine for five in CIFAR100.values() for fine in five.split())
CIFAR100_COARSE = [  # the coarse class of each fine class
    next(c for c, five in enumerate(CIFAR100.values()) if fine in five.split())
    for fine in CIFAR100_FINE
]
CAMVID = _words("sky building pole road pavement tree sign_symbol fence car pedestrian bicyclist")
VOC = _words(
    "background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse "
    "motorbike person pottedplant sheep sofa train tvmonitor"
)
CITYSCAPES = _words(
    "road sidewalk building wall fence pole traffic_light traffic_sign vegetation terrain sky "
    "person rider car truck bus train motorcycle bicycle"
)
# The ids stored in Cityscapes' masks of the 19 classes that are scored.
CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
CLOTHING = _words(
    "T-Shirt Shirt Knitwear Chiffon Sweater Hoodie Windbreaker Jacket Downcoat Suit Shawl Dress "
    "Vest Underwear"
)
